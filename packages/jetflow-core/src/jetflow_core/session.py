"""The cached state of requests on a target: prefill, verify a tree, commit a path."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from jetflow_tree import Tree, ancestor_matrix
from numpy.typing import NDArray
from torch import Tensor

from jetflow_core.attention import Layout, Pass
from jetflow_core.cache import KVCache
from jetflow_core.guarded import GuardedLayout
from jetflow_core.layouts import BatchedLayout, Segment, SlotwiseLayout
from jetflow_core.rows import RowOutput
from jetflow_core.target import Target


class CachedSession:
    """Requests in slots, each with the keys and values of its committed tokens.

    Between rounds the cache of a slot holds every committed token but the last, which is the
    root of the next tree. `verify` runs a tree without changing what is committed; `commit`
    keeps some of its rows. Slots never feel each other.
    """

    def __init__(
        self,
        target: Target,
        *,
        capacity: int,
        num_slots: int = 1,
        max_rows: int = 256,
        prefill_rows: int = 512,
    ) -> None:
        """Allocate the cache.

        Args:
            target: What runs the rows.
            capacity: Tokens a slot can commit.
            num_slots: Requests held at once.
            max_rows: Largest tree, root included.
            prefill_rows: Prompt rows of one pass.

        Raises:
            ValueError: One of the numbers is below 1.
        """
        for name, value in (
            ("capacity", capacity),
            ("num_slots", num_slots),
            ("max_rows", max_rows),
            ("prefill_rows", prefill_rows),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}, it must be at least 1")
        self.target = target
        self.capacity = capacity
        self.max_rows = max_rows
        self._prefill_rows = prefill_rows
        self.cache = KVCache(
            num_layers=target.num_layers,
            num_slots=num_slots,
            kv_heads=target.num_kv_heads,
            rows=capacity + max_rows,
            head_dim=target.head_dim,
            dtype=target.dtype,
            device=target.device,
        )
        self._lengths = [0] * num_slots
        self._parents: list[NDArray[np.int32] | None] = [None] * num_slots

    def length(self, slot: int) -> int:
        """Committed rows of the slot's cache: its committed tokens but the last."""
        self._check_slot(slot)
        return self._lengths[slot]

    def release(self, slot: int) -> None:
        """Forget the request in `slot`."""
        self._check_slot(slot)
        self._lengths[slot] = 0
        self._parents[slot] = None

    def prefill(self, slot: int, tokens: Sequence[int]) -> RowOutput:
        """Commit all tokens of a prompt but the last, which becomes the root.

        Args:
            slot: An empty slot.
            tokens: The prompt, at least one token.

        Returns:
            Features of the `len(tokens) - 1` committed rows, and no logits.

        Raises:
            ValueError: The slot is in use, or the prompt is empty, holds a token that is not in
                the vocabulary, or is longer than the capacity or the model's context.
        """
        self._check_slot(slot)
        if self._lengths[slot]:
            raise ValueError(
                f"slot {slot} holds {self._lengths[slot]} rows of a request; release it first"
            )
        if not tokens:
            raise ValueError("an empty prompt has no root; give at least one token")
        if len(tokens) > self.target.context_length:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, the context of the target "
                f"{self.target.context_length}"
            )
        if len(tokens) - 1 > self.capacity:
            raise ValueError(
                f"the prompt has {len(tokens)} tokens, a slot has room for {self.capacity + 1}"
            )
        ids = np.asarray(tokens, dtype=np.int64)
        self._check_tokens(ids)
        chunks = [
            self._prefill_chunk(slot, ids[start : min(start + self._prefill_rows, len(ids) - 1)])
            for start in range(0, len(ids) - 1, self._prefill_rows)
        ]
        features = torch.cat(chunks) if chunks else self._no_rows(self.target.feature_size)
        return RowOutput(logits=self._no_rows(self.target.vocab_size), features=features)

    def verify(self, slots: Sequence[int], trees: Sequence[Tree]) -> list[RowOutput]:
        """Run one tree for each of `slots`, all in one pass.

        Nothing is committed; a second `verify` of a slot replaces its first.

        Args:
            slots: Distinct slots.
            trees: Row 0 of each is the slot's last committed token.

        Returns:
            For each slot, logits and features of all rows of its tree. They are views of one
            tensor of the pass. A row that is not finite changes no row that does not see it.

        Raises:
            ValueError: Slots repeat or are out of range, a tree has more than `max_rows` rows,
                holds a token that is not in the vocabulary, or a row at or past the context's
                end.
        """
        if not slots:
            return []
        self._check_trees(slots, trees)
        tokens = np.concatenate([tree.tokens for tree in trees])
        positions = np.concatenate(
            [
                tree.depths.astype(np.int64) + self._lengths[slot]
                for slot, tree in zip(slots, trees, strict=True)
            ]
        )
        visible = [torch.from_numpy(ancestor_matrix(tree)) for tree in trees]
        hidden, features = self._run(slots, visible, tokens, positions)
        if len(tokens) > len(trees) and not bool(hidden.isfinite().all()):
            self._guard(slots, visible, tokens, positions, hidden, features)
        logits = self.target.logits(hidden)
        for slot, tree in zip(slots, trees, strict=True):
            self._parents[slot] = tree.parents
        counts = [tree.num_nodes for tree in trees]
        return [
            RowOutput(logits=some_logits, features=some_features)
            for some_logits, some_features in zip(
                logits.split(counts), features.split(counts), strict=True
            )
        ]

    def commit(self, slot: int, rows: Sequence[int]) -> None:
        """Keep a path of the slot's last verified tree.

        Args:
            slot: A slot that was verified after its last commit.
            rows: Rows of that tree: the root's 0, then each a child of the one before it.

        Raises:
            ValueError: Nothing was verified, `rows` is no such path, or the slot is full.
        """
        self._check_slot(slot)
        parents = self._parents[slot]
        if parents is None:
            raise ValueError(f"slot {slot} has no verified tree to commit rows of")
        _check_path(rows, parents)
        length = self._lengths[slot]
        if length + len(rows) > self.capacity:
            raise ValueError(
                f"slot {slot} holds {length} rows and cannot take {len(rows)} more: "
                f"its capacity is {self.capacity}"
            )
        self.cache.compact(slot, length, rows)
        self._lengths[slot] = length + len(rows)
        self._parents[slot] = None

    def _no_rows(self, width: int) -> Tensor:
        return torch.empty((0, width), dtype=self.target.dtype, device=self.target.device)

    def _prefill_chunk(self, slot: int, tokens: NDArray[np.int64]) -> Tensor:
        count = len(tokens)
        start = self._lengths[slot]
        visible = torch.ones((count, count), dtype=torch.bool).tril()
        positions = np.arange(start, start + count)
        _, features = self._run([slot], [visible], tokens, positions)
        self._lengths[slot] = start + count
        return features

    def _guard(
        self,
        slots: Sequence[int],
        visible: Sequence[Tensor],
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        hidden: Tensor,
        features: Tensor,
    ) -> None:
        """Runs again, in place, the slots in which a row that is not finite may have spread."""
        finite = hidden.isfinite().all(dim=1).cpu()
        stop = 0
        for slot, seen in zip(slots, visible, strict=True):
            rows = slice(stop, stop + len(seen))
            stop = rows.stop
            if len(seen) > 1 and not bool(finite[rows].all()):
                hidden[rows], features[rows] = self._run(
                    [slot], [seen], tokens[rows], positions[rows], GuardedLayout
                )

    def _run(
        self,
        slots: Sequence[int],
        visible: Sequence[Tensor],
        tokens: NDArray[np.int64],
        positions: NDArray[np.int64],
        layout: Callable[[KVCache, Sequence[Segment], int], Layout] | None = None,
    ) -> tuple[Tensor, Tensor]:
        segments = [
            Segment(slot=slot, start=self._lengths[slot], visible=rows)
            for slot, rows in zip(slots, visible, strict=True)
        ]
        # On a CPU nothing is gained by one call for all slots, and padding costs.
        batched = len(segments) > 1 and self.target.device.type != "cpu"
        chosen = layout or (BatchedLayout if batched else SlotwiseLayout)
        device = self.target.device
        return self.target.run(
            torch.from_numpy(tokens).to(device),
            torch.from_numpy(positions).to(device),
            Pass(chosen(self.cache, segments, self.target.num_heads)),
        )

    def _check_slot(self, slot: int) -> None:
        if not 0 <= slot < len(self._lengths):
            raise ValueError(f"slot {slot} is not one of 0 to {len(self._lengths) - 1}")

    def _check_tokens(self, tokens: NDArray[np.int64]) -> None:
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.target.vocab_size:
            raise ValueError(
                f"token {low if low < 0 else high} is not in the target's vocabulary of "
                f"{self.target.vocab_size}"
            )

    def _check_trees(self, slots: Sequence[int], trees: Sequence[Tree]) -> None:
        if len(slots) != len(trees):
            raise ValueError(f"{len(slots)} slots but {len(trees)} trees")
        if len(set(slots)) != len(slots):
            raise ValueError(f"slots {list(slots)} are not distinct")
        for slot, tree in zip(slots, trees, strict=True):
            self._check_slot(slot)
            if tree.num_nodes > self.max_rows:
                raise ValueError(
                    f"the tree of slot {slot} has {tree.num_nodes} rows, a pass takes at most "
                    f"{self.max_rows}"
                )
            self._check_tokens(tree.tokens)
            last = self._lengths[slot] + int(tree.depths.max())
            if last >= self.target.context_length:
                raise ValueError(
                    f"the tree of slot {slot} reaches position {last}, the target's context ends "
                    f"at {self.target.context_length - 1}"
                )


def _check_path(rows: Sequence[int], parents: NDArray[np.int32]) -> None:
    if not rows or rows[0] != 0:
        raise ValueError(f"committed rows {list(rows)} do not begin with the root, row 0")
    for parent, row in pairwise(rows):
        if not 0 < row < len(parents) or parents[row] != parent:
            raise ValueError(
                f"committed rows {list(rows)} are no path: row {row} is not a child of {parent}"
            )
