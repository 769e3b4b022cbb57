"""Acceptance and scores that are given instead of found, as tensors that a graph can hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jetflow_core.bench.engine.drafts_as import DraftsAs
from jetflow_core.rounds import DraftInputs, RoundDrafter, TreeBatch

_WORD_BITS = 64
_SLOT_STRIDE = 7


class ImposedAcceptance:
    """An ``ImposedPicks`` that makes every walk as long as a distribution says.

    For each request and round a number of rows to keep is drawn. A node of that depth, or of the
    deepest there is if the tree is not that deep, becomes the walk's end: drawn among the nodes of
    its depth by their scores, so that the rows of its path are adjacent as seldom as they would be.
    The picks along its path are the tokens of the path; the pick at its end is the target's own, or
    the next token of the vocabulary that is none of its children.

    Draws are made on the host, before a run, and lie on the device: what a round keeps follows from
    the seed, the slot and the number of the round since ``restart``. The numbers of a run are the
    distribution's quantiles in random order, so that their mean is the distribution's to a fraction
    of what a free draw would miss it by.

    Args:
        slots: requests held at once.
        rounds: rounds of a run; a longer one starts over.
        most_rows: rows of the largest tree, padding included.
        vocab_size: tokens.
        device: of the rounds.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self, *, slots: int, rounds: int, most_rows: int, vocab_size: int, device: torch.device
    ) -> None:
        for name, value in (("slots", slots), ("rounds", rounds), ("most_rows", most_rows)):
            if value < 1:
                raise ValueError(f"{name} {value} is out of range: at least 1")
        if vocab_size <= most_rows:
            raise ValueError(
                f"a vocabulary of {vocab_size} tokens is too small for trees of {most_rows} rows: "
                "a node's children might be all of it"
            )
        self._vocab_size = vocab_size
        self.wanted: NDArray[np.int64] = np.zeros((slots, rounds), dtype=np.int64)
        """What is to be kept, by slot and round since ``restart``."""
        self._wanted = torch.zeros(slots, rounds, dtype=torch.int64, device=device)
        self._noise = torch.zeros(rounds, most_rows, dtype=torch.float64, device=device)
        self._turn = torch.zeros(1, dtype=torch.int64, device=device)

    @property
    def changes(self) -> Sequence[Tensor]:
        """What a round changes for the next one."""
        return (self._turn,)

    def restart(self, at_least: Sequence[float], seed: int) -> None:
        """The next round is the first of a run with this distribution; by the host.

        Args:
            at_least: probabilities to keep 1, 2, .. drafted rows or more, never rising.
            seed: of all draws.
        """
        draw = np.random.default_rng(seed)
        slots, rounds = self.wanted.shape
        order = draw.permuted(np.tile(np.arange(rounds), (slots, 1)), axis=1)
        part = (draw.permutation(slots) + 0.5) / slots
        self._keep((order + part[:, None]) / rounds, np.asarray(at_least))
        self._noise.copy_(torch.from_numpy(draw.gumbel(size=tuple(self._noise.shape))))
        self._turn.zero_()

    def _keep(self, places: NDArray[np.float64], at_least: NDArray[np.float64]) -> None:
        """What is to be kept, from each slot's and round's place in the distribution."""
        self.wanted = (places[..., None] < at_least).sum(-1)
        self._wanted.copy_(torch.from_numpy(self.wanted))

    def __call__(self, trees: TreeBatch, counts: Tensor, picks: Tensor) -> Tensor:
        """See ``ImposedPicks``."""
        rows = torch.arange(picks.shape[1], device=picks.device)
        inside = rows < counts[:, None]
        ends = self._ends(trees, inside)
        self._turn.add_(1)
        words = trees.ancestors[torch.arange(picks.shape[0], device=picks.device), ends]
        on_path = (words[:, rows // _WORD_BITS] >> (rows % _WORD_BITS)) & 1 > 0
        # Each row of the path but the root is what its parent picks; all others pick for nobody.
        behind = picks.shape[1]
        goes_on = on_path & inside & (rows > 0)
        goal = trees.parents.long().masked_fill(~goes_on, behind)
        changed = torch.cat([picks, picks[:, :1]], dim=1).scatter(1, goal, trees.tokens)
        last = self._not_a_child(trees, inside, ends, picks)
        return changed[:, :behind].scatter(1, ends[:, None], last[:, None])

    def _ends(self, trees: TreeBatch, inside: Tensor) -> Tensor:
        """int64 ``[R]``: the last row of each walk."""
        requests, rows = inside.shape
        rounds = self._wanted.shape[1]
        turn = self._turn % rounds
        scores = self._scores(trees)
        wanted = self._lengths(turn, requests, scores, trees.depths, inside)
        depths = trees.depths.masked_fill(~inside, 0)
        wanted = torch.minimum(wanted, depths.amax(1, keepdim=True))
        slots = torch.arange(requests, device=inside.device)
        noise = self._noise[(turn + _SLOT_STRIDE * slots) % rounds, :rows]
        # An argmax over nothing but -inf is row 0, the root, as it should be.
        return (scores + noise).masked_fill(~inside | (depths != wanted), -torch.inf).argmax(1)

    def _scores(self, trees: TreeBatch) -> Tensor:
        """``[R, C]``: what nodes of a depth are drawn by."""
        return trees.scores

    def _lengths(
        self, turn: Tensor, requests: int, scores: Tensor, depths: Tensor, inside: Tensor
    ) -> Tensor:
        """int64 ``[R, 1]``: rows to keep."""
        return self._wanted[:requests].index_select(1, turn)

    def _not_a_child(self, trees: TreeBatch, inside: Tensor, ends: Tensor, picks: Tensor) -> Tensor:
        """int32 ``[R]``: a token that no child of the row ``ends`` has."""
        own = picks.gather(1, ends[:, None])
        # Fewer children than rows, so one of as many tokens is free.
        tries = torch.arange(picks.shape[1], device=picks.device)
        tokens = (own + tries) % self._vocab_size
        children = inside & (trees.parents == ends[:, None])
        taken = (tokens[:, :, None] == trees.tokens[:, None]) & children[:, None]
        first = (~taken.any(2)).int().argmax(1)
        return tokens.gather(1, first[:, None])[:, 0].to(picks.dtype)


class ImposedScores(DraftsAs):
    """A ``RoundDrafter`` that drafts as another one does, and scores as a table says.

    Args:
        drafter: makes the candidates; what it does is done in full.
        log_probs: ``[D, K]``: scores of each rank of each depth, whatever the parent.
    """

    def __init__(self, drafter: RoundDrafter, log_probs: Tensor) -> None:
        super().__init__(drafter)
        self._log_probs = log_probs[:, None]
        self.tokens: Tensor | None = None
        """int32 ``[R, D, K]``, those of the newest proposal."""

    def of_rows(self, trees: TreeBatch) -> Tensor:
        """float64 ``[R, C]``: the table's own scores of the rows of trees, whatever theirs became.

        The trees are those of the newest proposal; 0 at the root and behind the last row.
        """
        assert self.tokens is not None
        level = (trees.depths.long() - 1).clamp(min=0)
        at = level[..., None].expand(-1, -1, self.tokens.shape[2])
        ranks = (self.tokens.gather(1, at) == trees.tokens[..., None]).int().argmax(2)
        scores = self._log_probs[level, 0, ranks].double().masked_fill(trees.depths < 1, 0.0)
        # Every step doubles how far above a row its sum reaches.
        above = trees.parents.long().clamp(min=0)
        for _ in range(self.depth.bit_length()):
            scores = scores + scores.gather(1, above)
            above = above.gather(1, above)
        return scores

    def propose(self, inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        """The drafter's candidates with the table's scores; what was no node is none still."""
        tokens, scores = self._drafter.propose(inputs)
        self.tokens = tokens
        table = self._log_probs.to(scores.dtype).expand_as(scores)
        return tokens, torch.where(scores == -torch.inf, scores, table)
