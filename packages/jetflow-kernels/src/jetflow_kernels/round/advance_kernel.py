"""Triton: the end of a round, one program a request."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["stops_stride", "record_stride", "num_stops", "steps", "num_rows"])
def advance_kernel(
    live: tl.tensor,
    roots: tl.tensor,
    prefix_len: tl.tensor,
    remaining: tl.tensor,
    stops: tl.tensor,
    record: tl.tensor,
    rows: tl.tensor,
    tokens: tl.tensor,
    accepted: tl.tensor,
    correction: tl.tensor,
    counts: tl.tensor,
    cu_nodes: tl.tensor,
    broken: tl.tensor,
    valid: tl.tensor,
    kept_rows: tl.tensor,
    kept_places: tl.tensor,
    kept_counts: tl.tensor,
    stops_stride: tl.tensor,
    record_stride: tl.tensor,
    num_stops: tl.tensor,
    steps: tl.tensor,
    num_rows: tl.tensor,
    STEPS: tl.constexpr,
    STOPS: tl.constexpr,
) -> None:
    """One request of ``advance``."""
    request = tl.program_id(0).to(tl.int64)
    each, known = tl.arange(0, STEPS), tl.arange(0, STOPS)
    inside = each < steps
    going = tl.load(live + request) != 0
    line = request * steps + each
    row = tl.load(rows + line, mask=inside, other=-1)
    row = tl.where(going, row, -1)
    place = tl.load(cu_nodes + request) + row
    place = tl.minimum(tl.maximum(place, 0), num_rows - 1)
    tl.store(kept_rows + line, row, mask=inside)
    tl.store(kept_places + line, place.to(tl.int64), mask=inside)
    tl.store(kept_counts + request, tl.sum((row >= 0).to(tl.int32)))
    nan = tl.load(broken + place, mask=inside & (row >= 0), other=0).to(tl.int32)
    taken = tl.load(accepted + request)
    grown = tl.where(going, taken + 1, 0)
    token = tl.load(tokens + line, mask=inside, other=-1)
    stop = tl.load(stops + request * stops_stride + known, mask=known < num_stops, other=-1)
    ends = tl.max((token[:, None] == stop[None, :]).to(tl.int32), axis=1) > 0
    before = tl.min(tl.where(ends & (token >= 0), each + 1, steps + 1))
    left = tl.load(remaining + request)
    count = tl.minimum(grown, tl.minimum(before, left))
    count = tl.where(going, count, 0)
    record += request * record_stride
    seen = going.to(tl.int32)
    tl.store(record, count)
    tl.store(record + 1, taken * seen)
    tl.store(record + 2, tl.load(counts + request) * seen)
    tl.store(record + 3, tl.max(nan) * seen)
    tl.store(record + 4, tl.load(valid + request).to(tl.int32) * seen)
    tl.store(record + 5 + each, token * seen, mask=inside)
    old = tl.load(roots + request)
    tl.store(roots + request, tl.where(going, tl.load(correction + request), old))
    tl.store(prefix_len + request, tl.load(prefix_len + request) + grown)
    tl.store(remaining + request, left - count)
    ended = (before <= grown) | (count >= left)
    tl.store(live + request, going & (ended == 0))
