"""A model of a trained head that fits a trace: scores by depth and rank, and what follows of them.

A trace says what trees of one budget kept, and nothing of the scores that grew them. A head of
random weights would score all candidates alike, so its trees would be wide and shallow, and what a
trace asks for could not be found in them. So scores are imposed as well, by a table of one number:

- the best candidate of depth d has the probability ``c(d) ** s``, c(d) being the trace's chance to
  go on from depth d - 1;
- the others share what is left as the powers ``rank ** -1.5`` share it;
- s is such that the exact tree of the trace's budget is expected to give the trace's tau, as the
  scores of a calibrated head would.

At other budgets than its own the trace is scaled at each depth by what the table's tree holds
there, over what it holds at the trace's budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jetflow_tree import BestFirst, Candidates, Tree
from numpy.typing import NDArray

from jetflow_core.bench.engine.acceptance import Trace

_DECAY = 1.5
_RANKS = 20_000
_LEAST, _MOST = 1e-4, 1.0 - 1e-6
_EXPONENTS = (0.05, 60.0)
_HALVINGS = 40


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class HeadModel:
    """Scores of a head whose trees would be accepted as a trace says."""

    trace: Trace
    log_probs: NDArray[np.float64]
    """``[D, K]``: the score of each rank of each depth, best first."""
    exponent: float
    """The table's one number."""

    @property
    def depth(self) -> int:
        """D."""
        return int(self.log_probs.shape[0])

    def tree(self, budget: int) -> Tree:
        """The exact tree of so many rows; its tokens are ranks."""
        return _tree(self.log_probs, budget)

    def at_least(self, budget: int) -> tuple[float, ...]:
        """Probabilities to keep 1..D drafted tokens or more with trees of so many rows."""
        own = _mass(_tree(self.log_probs, self.trace.budget), self.depth)
        here = _mass(self.tree(budget), self.depth)
        wanted = np.asarray(self.trace.at_least[: self.depth])
        if budget == self.trace.budget:
            return tuple(wanted.tolist())
        ratio = np.where(own > 0, here / np.where(own > 0, own, 1.0), (here > 0).astype(float))
        scaled = np.minimum(wanted * ratio, 1.0)
        return tuple(np.minimum.accumulate(scaled).tolist())

    def per_mass(self) -> tuple[float, ...]:
        """By depth: how likely a round keeps so many drafted tokens or more, over the nodes' mass.

        The mass is the probability that the table gives to the nodes of that depth together. Times
        that of a tree of the trace's own size it is the trace, of others what ``at_least`` says.
        """
        own = _mass(_tree(self.log_probs, self.trace.budget), self.depth)
        wanted = np.asarray(self.trace.at_least[: self.depth])
        found = np.divide(wanted, own, out=np.zeros_like(own), where=own > 0)
        return tuple(found.tolist())


def head_model(trace: Trace, *, depth: int, width: int) -> HeadModel:
    """The table that fits a trace.

    Args:
        trace: what is to come of it.
        depth: depths that are drafted, 1 to the trace's own.
        width: candidates a depth.

    Raises:
        ValueError: a number is out of range.
    """
    if not 1 <= depth <= trace.depth:
        raise ValueError(
            f"depth {depth} is out of range: trace {trace.name!r} knows of 1 to {trace.depth}"
        )
    if width < 1:
        raise ValueError(f"width {width} is out of range: at least 1")
    before = np.asarray((1.0, *trace.at_least[:-1]))
    going_on = np.divide(trace.at_least, before, out=np.zeros_like(before), where=before > 0)
    low, high = _EXPONENTS
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = _tree(_table(going_on, middle, width), trace.budget)
        if 1.0 + found.expected_length() > trace.tau:
            low = middle
        else:
            high = middle
    exponent = (low + high) / 2
    return HeadModel(
        trace=trace, log_probs=_table(going_on, exponent, width)[:depth], exponent=exponent
    )


def _table(going_on: NDArray[np.float64], exponent: float, width: int) -> NDArray[np.float64]:
    best = np.clip(going_on**exponent, _LEAST, _MOST)[:, None]
    powers = np.arange(2.0, _RANKS) ** -_DECAY
    shares = powers[: width - 1] / powers.sum()
    # A rank further back is never likelier than the best one.
    return np.log(np.concatenate([best, np.minimum((1.0 - best) * shares, best)], axis=1))


def _tree(log_probs: NDArray[np.float64], budget: int) -> Tree:
    ranks = np.tile(np.arange(log_probs.shape[1]), (log_probs.shape[0], 1))
    return BestFirst().build(0, Candidates.marginal(ranks, log_probs), budget)


def _mass(tree: Tree, depth: int) -> NDArray[np.float64]:
    """Probability of the tree's nodes at depths 1..D."""
    mass = np.zeros(depth + 1)
    np.add.at(mass, tree.depths, np.exp(tree.scores))
    return mass[1:]
