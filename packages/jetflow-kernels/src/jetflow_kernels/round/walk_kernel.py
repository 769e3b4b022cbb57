"""Triton: ancestor words of given trees, and the walk along the target's picks."""

from __future__ import annotations

import triton
import triton.language as tl

from jetflow_kernels.round.frontier_kernel import write_words

_LARGEST = tl.constexpr(2147483647)


@triton.jit(do_not_specialize=["capacity", "num_words"])
def pack_kernel(
    parents: tl.tensor,
    num_nodes: tl.tensor,
    words: tl.tensor,
    valid: tl.tensor,
    capacity: tl.tensor,
    num_words: tl.tensor,
    SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """One tree of ``pack_ancestors``."""
    request = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, SLOTS)
    parents += request * capacity
    count = tl.load(num_nodes + request)
    above = tl.load(parents + rows, mask=(rows < count) & (rows < capacity), other=0)
    right = tl.where(rows == 0, above == -1, (above >= 0) & (above < rows))
    right = right | (rows >= count)
    fine = (tl.min(right.to(tl.int32)) > 0) & (count >= 1) & (count <= capacity)
    tl.store(valid + request, fine)
    # A tree that is not one is not walked: its parents may go round in circles.
    count = tl.where(fine, count, 0).to(tl.int32)
    words += request * capacity * num_words
    write_words(words, parents, rows, capacity, count, num_words, COLUMNS)


@triton.jit(do_not_specialize=["capacity", "max_depth"])
def accept_kernel(
    tokens: tl.tensor,
    parents: tl.tensor,
    num_nodes: tl.tensor,
    picks: tl.tensor,
    out_rows: tl.tensor,
    out_tokens: tl.tensor,
    out_accepted: tl.tensor,
    out_correction: tl.tensor,
    capacity: tl.tensor,
    max_depth: tl.tensor,
    SLOTS: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """One tree of ``accept_walk``."""
    request = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, SLOTS)
    steps = tl.arange(0, STEPS)
    count = tl.load(num_nodes + request)
    inside = (rows < capacity) & (rows < count)
    above = tl.load(parents + request * capacity + rows, mask=inside, other=-1)
    named = tl.load(tokens + request * capacity + rows, mask=inside, other=-1)
    picks += request * capacity
    path = tl.full([STEPS], -1, tl.int32)
    path = tl.where(steps == 0, 0, path)
    row = tl.zeros([], tl.int32)
    accepted = tl.zeros([], tl.int32)
    wanted = tl.load(picks)
    emitted = tl.full([STEPS], -1, tl.int64)
    going = max_depth > 0
    while going:
        child = tl.min(tl.where(inside & (above == row) & (named == wanted), rows, _LARGEST))
        found = child < _LARGEST
        emitted = tl.where((steps == accepted) & found, wanted.to(tl.int64), emitted)
        accepted = tl.where(found, accepted + 1, accepted)
        path = tl.where((steps == accepted) & found, child, path)
        row = tl.where(found, child, row)
        wanted = tl.load(picks + row)
        going = found & (accepted < max_depth)
    emitted = tl.where(steps == accepted, wanted.to(tl.int64), emitted)
    inside_path = steps <= max_depth
    place = request * (max_depth + 1) + steps
    tl.store(out_rows + place, path, mask=inside_path)
    tl.store(out_tokens + place, emitted, mask=inside_path)
    tl.store(out_accepted + request, accepted)
    tl.store(out_correction + request, wanted)
