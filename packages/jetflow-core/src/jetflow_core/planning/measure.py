"""Timing a target and a drafter on this device, for the planner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jetflow_tree import Tree
from torch import Tensor

from jetflow_core.planning.costs import LearntCosts, StepCosts, measure_steps
from jetflow_core.protocols import Drafter, TargetSession

_CPU_ROWS = (1, 4, 8, 16, 32)
_GPU_ROWS = (1, 8, 16, 32, 64, 128, 256)
_DEPTHS = (1, 4, 8)
_CONTEXT = 128
_FANOUT = 8
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """What a planner needs to know of a device."""

    draft: StepCosts
    """Of one request's draft by depth."""
    verify: StepCosts
    """Of a pass by rows."""
    draft_growth: float
    """Share of a draft's cost that each further request adds."""


def measured_costs(
    session: TargetSession,
    drafter: Drafter | None,
    *,
    num_slots: int,
    device_type: str,
    context_length: int,
    vocab_size: int,
) -> MeasuredCosts:
    """Costs of a draft and of a pass at a short context.

    Takes 1 to 2 seconds on a CPU with a small target. Uses and releases slot 0.

    Args:
        session: the target, slot 0 free.
        drafter: drafts for the same slot, and forgets it; None: drafts are not timed here, their
            cost is learnt from those of real rounds.
        num_slots: of the drafter; with more than one, a second request is drafted for too.
        device_type: "cpu" or another; a GPU is measured at more sizes.
        context_length: most tokens of a request; the measurement stays below.
        vocab_size: the target's tokens are below it.
    """
    trees = _trees(device_type, context_length, vocab_size)
    deepest = max(tree.max_depth for tree in trees.values())
    prompt = [0] * max(1, min(_CONTEXT, context_length - deepest))
    features = session.prefill(0, prompt).features
    try:
        verify = measure_steps(
            lambda rows: _pass(session, trees[rows]), list(trees), repeats=_REPEATS
        )
        if drafter is None:
            return MeasuredCosts(LearntCosts(guess=verify.at(1)), verify, 0.0)
        drafter.begin(0, prompt)
        drafter.observe(0, prompt[:-1], features)
        depths = sorted({*(d for d in _DEPTHS if d < drafter.max_depth), drafter.max_depth})
        draft = measure_steps(lambda depth: _draft(drafter, depth), depths, repeats=_REPEATS)
        growth = measured_growth(drafter, features, prompt) if num_slots > 1 else 0.0
    finally:
        session.release(0)
    return MeasuredCosts(draft, verify, growth)


def measured_growth(drafter: Drafter, features: Tensor, prompt: Sequence[int]) -> float:
    """What a second request adds to the cost of a draft, as a share of one request's.

    Args:
        drafter: with slots 0 and 1, which it forgets.
        features: of the target at ``prompt`` without its last token.
        prompt: tokens of the requests.
    """
    for slot in (0, 1):
        drafter.begin(slot, prompt)
        drafter.observe(slot, prompt[:-1], features)
    depth = drafter.max_depth
    costs = measure_steps(
        lambda count: _draft(drafter, depth, slots=count), (1, 2), repeats=_REPEATS
    )
    return costs.at(2) / costs.at(1) - 1.0


def _trees(device_type: str, context_length: int, vocab_size: int) -> dict[int, Tree]:
    """Trees by their rows, as far as the vocabulary and the context have room for them."""
    sizes: Sequence[int] = _CPU_ROWS if device_type == "cpu" else _GPU_ROWS
    trees = {rows: _bush(rows, min(_FANOUT, vocab_size)) for rows in sizes}
    return {rows: tree for rows, tree in trees.items() if tree.max_depth < context_length}


def _bush(rows: int, fanout: int) -> Tree:
    # Any shape costs the same; this one needs few tokens and few positions.
    row = np.arange(rows) - 1
    return Tree.from_parents(row % fanout, row // fanout)


def _pass(session: TargetSession, tree: Tree) -> None:
    output = session.verify([0], [tree])[0]
    # Reading the result waits for the device.
    output.logits.argmax(-1).tolist()


def _draft(drafter: Drafter, depth: int, *, slots: int = 1) -> None:
    drafter.propose(list(range(slots)), [0] * slots, depth)
