# mypy: ignore-errors
"""Triton: tree attention of one tile of rows over one piece of a request at a time.

The heads that share a key head are packed into the rows of a tile, so that one tile of keys serves
all of them. Whole tiles of the prefix need no mask; the remainder of the prefix and the tree do,
and the tree's tiles start at its row 0, so that bit c of a word is column c of its tile.
"""

import triton
import triton.language as tl

from jetflow_kernels.attention.worklist import chunk_lengths, request_at, requests_of

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _weigh(q, k, peak, total, scale, seen, MASKED: tl.constexpr, WIDEN: tl.constexpr):
    """Weights of one tile of keys; scores are in powers of two.

    Returns:
        Weights, what earlier results shrink by, and the new peak and total.
    """
    if WIDEN:
        # Triton's interpreter multiplies the raw bits of bfloat16.
        scores = tl.dot(q.to(tl.float32), tl.trans(k.to(tl.float32)), input_precision="ieee")
    else:
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if MASKED:
        scores = tl.where(seen, scores * scale, float("-inf"))
        raised = tl.maximum(peak, tl.max(scores, 1))
        # A row that has seen nothing yet: inf - inf would be NaN.
        base = tl.where(raised == float("-inf"), 0.0, raised)
        weights = tl.exp2(scores - base[:, None])
    else:
        raised = tl.maximum(peak, tl.max(scores, 1) * scale)
        base = raised
        weights = tl.exp2(scores * scale - base[:, None])
    shrink = tl.exp2(peak - base)
    return weights, shrink, raised, total * shrink + tl.sum(weights, 1)


@triton.jit
def _mix(weights, v, mixed, shrink, WIDEN: tl.constexpr):
    """One tile of values added."""
    mixed = mixed * shrink[:, None]
    weights = weights.to(v.dtype)
    if WIDEN:
        return tl.dot(weights.to(tl.float32), v.to(tl.float32), mixed, input_precision="ieee")
    else:
        return tl.dot(weights, v, mixed, input_precision="ieee")


@triton.jit
def _fold(q, k, v, peak, total, mixed, scale, seen, MASKED: tl.constexpr, WIDEN: tl.constexpr):
    """One tile of keys and values added to the running softmax."""
    weights, shrink, peak, total = _weigh(q, k, peak, total, scale, seen, MASKED, WIDEN)
    return peak, total, _mix(weights, v, mixed, shrink, WIDEN)


@triton.jit
def _turned(q_tile):
    """With the sign of a negative scale, as the unmasked path finds the largest score unscaled.

    Only where the scale is negative: tensor cores read a tile that was computed from registers
    instead of shared memory, and it would be loaded into them again for each tile of keys.
    """
    # Triton's interpreter would negate the raw bits of bfloat16.
    return (q_tile.to(tl.float32) * -1.0).to(q_tile.dtype)


@triton.jit
def _slots(
    table, table_entry, start, columns, live, dims,
    k_page, k_slot, k_dim, v_page, v_slot, v_dim, known,
    PAGE: tl.constexpr, BY_PAGE: tl.constexpr, ALIKE: tl.constexpr,
):  # fmt: skip
    """Where the keys and values of a tile are in their pools, [BLOCK_N, DIM] each.

    BY_PAGE: the tile lies within one page, which is ``known``.
    """
    if BY_PAGE:
        page = known.to(tl.int64)
        slot = start % PAGE + columns
        k_at = page * k_page + (slot[:, None] * k_slot + dims[None, :] * k_dim)
    else:
        at = start + columns
        page = tl.load(table + at // PAGE * table_entry, mask=live, other=0).to(tl.int64)
        slot = at % PAGE
        k_at = (page * k_page + slot * k_slot)[:, None] + dims[None, :] * k_dim
    if ALIKE:
        # Equal strides: one computation serves both pools.
        v_at = k_at
    elif BY_PAGE:
        v_at = page * v_page + (slot[:, None] * v_slot + dims[None, :] * v_dim)
    else:
        v_at = (page * v_page + slot * v_slot)[:, None] + dims[None, :] * v_dim
    return k_at, v_at


@triton.jit(do_not_specialize=["rows", "requests"])
def tree_attention_kernel(
    q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors, out, lse, partial, partial_lse,
    q_row, q_head, q_dim, k_page, k_slot, k_head, k_dim, v_page, v_slot, v_head, v_dim,
    table_request, table_entry, cu_stride, prefix_stride, words_row, words_word,
    out_row, out_head, out_dim, lse_row, lse_head,
    scale, rows, requests,
    HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAGE: tl.constexpr,
    WORDS: tl.constexpr, REQUESTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WORK: tl.constexpr, SHORTEST: tl.constexpr,
    BY_PAGE: tl.constexpr, ALIKE: tl.constexpr, WIDEN: tl.constexpr, NEGATIVE: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """All work items, a share for each program; ``launch.py`` names the arguments."""
    KV_HEADS: tl.constexpr = HEADS // GROUP
    if OVERLAPPED:
        # In this order: who starts once all programs have come here may read what was before.
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    index, _, counts, prefixes = requests_of(
        cu_nodes, cu_stride, prefix_len, prefix_stride, requests, REQUESTS
    )
    chunks = chunk_lengths(prefixes, counts, HEADS, WORK, SHORTEST)
    pieces = tl.where(counts > 0, prefixes // chunks + 1, 0)
    items = pieces * ((counts * GROUP + BLOCK_M - 1) // BLOCK_M) * KV_HEADS
    ends = tl.cumsum(items, 0)
    slots = counts * pieces
    for item in range(tl.program_id(0), tl.sum(items, 0), tl.num_programs(0)):
        request = tl.sum((ends <= item).to(tl.int32), 0)
        place = item - tl.sum(tl.where(index < request, items, 0), 0)
        slot = tl.sum(tl.where(index < request, slots, 0), 0)
        first, count, prefix = request_at(cu_nodes, cu_stride, prefix_len, prefix_stride, request)
        chunk = chunk_lengths(prefix, count, HEADS, WORK, SHORTEST)
        split = prefix // chunk + 1
        tiles = (count * GROUP + BLOCK_M - 1) // BLOCK_M
        # Row tiles innermost: neighbours in time read the same keys.
        row_tile = place % tiles
        head = place // tiles % KV_HEADS
        piece = place // (tiles * KV_HEADS)

        packed = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
        node = packed // GROUP
        real = node < count
        row = (first + node).to(tl.int64)
        q_heads = head * GROUP + packed % GROUP
        dims = tl.arange(0, DIM)
        columns = tl.arange(0, BLOCK_N)
        q_tile = tl.load(
            q + (row * q_row + q_heads * q_head)[:, None] + dims[None, :] * q_dim,
            mask=real[:, None],
            other=0.0,
        )
        factor = scale * LOG2_E
        if NEGATIVE:
            q_tile, factor = _turned(q_tile), -factor

        k_base = k_pool + head.to(tl.int64) * k_head
        v_base = v_pool + head.to(tl.int64) * v_head
        table = page_table + request.to(tl.int64) * table_request
        peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        mixed = tl.zeros([BLOCK_M, DIM], tl.float32)

        begin = piece * chunk
        is_last = piece == split - 1
        whole = tl.where(is_last, (prefix - begin) // BLOCK_N * BLOCK_N, chunk) + begin
        page = 0
        if BY_PAGE:
            page = tl.load(table + begin // PAGE * table_entry, mask=begin < whole, other=0)
        for start in range(begin, whole, BLOCK_N):
            k_at, v_at = _slots(
                table, table_entry, start, columns, columns < BLOCK_N, dims, k_page, k_slot, k_dim,
                v_page, v_slot, v_dim, page, PAGE, BY_PAGE, ALIKE,
            )  # fmt: skip
            if BY_PAGE:
                # A page that the last tile looked up, so that copies wait for no other copy.
                after = start + BLOCK_N
                page = tl.load(table + after // PAGE * table_entry, mask=after < whole, other=0)
            k = tl.load(k_base + k_at)
            v = tl.load(v_base + v_at)
            peak, total, mixed = _fold(q_tile, k, v, peak, total, mixed, factor, real, False, WIDEN)

        # Tile -1 is the remainder of the prefix; from 0 on, the tree.
        tree = tl.minimum(count, WORDS * 64)
        tail = tl.where(is_last & (whole < prefix), -1, 0)
        tail_end = tl.where(is_last, (tree + BLOCK_N - 1) // BLOCK_N, 0)
        for tile in range(tail, tail_end):
            in_tree = tile >= 0
            column = tile * BLOCK_N + columns
            at = tl.where(in_tree, prefix, whole + BLOCK_N) + column
            live = at < tl.where(in_tree, prefix + tree, prefix)
            k_at, v_at = _slots(
                table, table_entry, 0, at, live, dims, k_page, k_slot, k_dim,
                v_page, v_slot, v_dim, 0, PAGE, False, ALIKE,
            )  # fmt: skip
            # What lies past the end is not read: 0 * NaN would reach every row.
            k = tl.load(k_base + k_at, mask=live[:, None], other=0.0)
            v = tl.load(v_base + v_at, mask=live[:, None], other=0.0)
            word = tl.load(
                ancestors + row * words_row + tile * BLOCK_N // 64 * words_word,
                mask=real & in_tree,
                other=-1,
            )
            bit = tl.where(in_tree, column % 64, columns)
            half = tl.where(
                (bit < 32)[None, :],
                word.to(tl.int32)[:, None],
                (word >> 32).to(tl.int32)[:, None],
            )
            seen = ((half >> (bit % 32)[None, :]) & 1) != 0
            peak, total, mixed = _fold(
                q_tile, k, v, peak, total, mixed, factor, seen & live[None, :], True, WIDEN
            )

        empty = total == 0.0
        mixed = mixed / tl.where(empty, 1.0, total)[:, None]
        log2_sum = tl.where(empty, float("-inf"), peak + tl.log2(tl.where(empty, 1.0, total)))
        if split == 1:
            tl.store(
                out + (row * out_row + q_heads * out_head)[:, None] + dims[None, :] * out_dim,
                mixed.to(out.dtype.element_ty),
                mask=real[:, None],
            )
            if lse is not None:
                tl.store(lse + row * lse_row + q_heads * lse_head, log2_sum * LN_2, mask=real)
        else:
            place_of = (slot + piece * count + node).to(tl.int64) * HEADS + q_heads
            tl.store(partial + place_of[:, None] * DIM + dims[None, :], mixed, mask=real[:, None])
            tl.store(partial_lse + place_of, log2_sum, mask=real)

    # Padding rows: zeros, seen by nobody.
    used = tl.load(cu_nodes + requests * cu_stride)
    pad_dims = tl.arange(0, DIM)
    nothing = tl.zeros([DIM], tl.float32).to(out.dtype.element_ty)
    for pad in range(used + tl.program_id(0), rows, tl.num_programs(0)):
        pad_row = tl.zeros([1], tl.int64) + pad
        for pad_head in range(HEADS):
            at = pad_row * out_row + pad_head * out_head + pad_dims * out_dim
            tl.store(out + at, nothing)
            if lse is not None:
                at = pad_row * lse_row + pad_head * lse_head
                tl.store(lse + at, tl.full([1], float("-inf"), tl.float32))
