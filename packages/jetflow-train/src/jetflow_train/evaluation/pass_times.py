"""What the head's passes of one round take on this device: what a second pass must be worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from jetflow_core.head.context import PaddedContext
from jetflow_core.head.model import DraftHead
from jetflow_core.head.proposal import draft_candidates
from jetflow_core.head.second_pass import PaddedTrees, child_candidates, second_pass
from jetflow_tree import BestFirst, Candidates
from torch import Tensor

from jetflow_train.target import FrozenTarget

CONTEXT = 512
PASS_SECONDS = (
    f"median seconds of the head's passes for one request with a context of {CONTEXT} rows, output "
    "matrix and choice of candidates included: block: the first pass; second: a second pass by the "
    "rows of its tree. On a GPU as replayed graphs; growing trees is no part of it"
)
_REPEATS = 20


@torch.no_grad()
def pass_seconds(target: FrozenTarget, head: DraftHead, budgets: Sequence[int]) -> dict[str, Any]:
    """``PASS_SECONDS`` of a head, by ``block`` and ``second``; the latter by budget.

    Args:
        target: whose embedding and output matrix the head uses.
        head: trained with prefix-filled blocks, on the target's device and in its type.
        budgets: rows of the trees.

    Raises:
        ValueError: the head was not trained for it.
    """
    one = _Request(target, head)
    seconds = {budget: _seconds(one.second(budget), target.device) for budget in budgets}
    return {"context": CONTEXT, "block": _seconds(one.block, target.device), "second": seconds}


class _Request:
    """One request's passes over a context of noise; what they compute is not looked at."""

    def __init__(self, target: FrozenTarget, head: DraftHead) -> None:
        self._target, self._head, self._device = target, head, target.device
        generator = torch.Generator().manual_seed(0)
        shape = (1, CONTEXT, head.config.feature_size)
        features = torch.randn(shape, generator=generator).to(target.device, target.dtype)
        positions = torch.arange(CONTEXT, device=target.device)[None]
        self._fused = head.fuse(features)
        self._context = head.context_keys_values(self._fused, positions)
        self._root = torch.zeros(1, dtype=torch.int64, device=target.device)
        self._lengths = torch.full((1,), CONTEXT, device=target.device)

    def _logits(self, rows: Tensor) -> Tensor:
        return (rows @ self._target.lm_head.T).float()

    def block(self) -> None:
        """The first pass."""
        head, embedding, depth = self._head, self._target.embedding, self._head.config.max_depth
        block = head.block_input(self._root, embedding, depth)
        block = head.bridged(block, embedding[self._root], self._fused[:, -1])
        slots = block.shape[1]
        inside = head.block_mask(slots, self._device)
        mask = torch.cat([inside.new_ones(slots, CONTEXT), inside], dim=1)[None, None]
        positions = CONTEXT + torch.arange(slots, device=self._device)[None]
        hidden = head.run_block(block, positions, PaddedContext(self._context, mask))
        rows = head.depth_rows(hidden, depth)
        draft_candidates(head, embedding, self._root, rows, self._logits(rows))

    def second(self, budget: int) -> Callable[[], None]:
        """A second pass over a tree of ``budget`` rows."""
        head, embedding = self._head, self._target.embedding
        width = min(head.config.candidates, head.config.vocab_size)
        shape = (head.config.max_depth, width)
        even = Candidates.marginal(
            np.broadcast_to(np.arange(width), shape), np.full(shape, -np.log(width))
        )
        trees = PaddedTrees.of([BestFirst().build(0, even, budget)], budget, self._device)

        def run() -> None:
            hidden = second_pass(
                head, embedding, trees, self._context, self._lengths, self._fused[:, -1]
            )
            logits = self._logits(hidden)
            child_candidates(head.path, embedding, trees.tokens, hidden, logits, width)

        return run


def _seconds(run: Callable[[], None], device: torch.device) -> float:
    if device.type != "cuda":
        run()
        return median(_clocked(run) for _ in range(_REPEATS))
    replay = _graph(run)
    return median(_timed_on_device(replay) for _ in range(_REPEATS))


def _clocked(run: Callable[[], None]) -> float:
    began = perf_counter()
    run()
    return perf_counter() - began


def _graph(run: Callable[[], None]) -> Callable[[], None]:
    """``run`` captured, as an engine would; else the launching of its kernels would be timed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # Libraries choose and allocate at their first calls.
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _timed_on_device(replay: Callable[[], None]) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    replay()
    ended.record()
    ended.synchronize()
    return float(began.elapsed_time(ended)) / 1000
