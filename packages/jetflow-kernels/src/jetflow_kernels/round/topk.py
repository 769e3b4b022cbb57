"""The candidates of every depth: the greatest logits of each row with their log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_kernels.round.checks import (
    LOGITS,
    device_of,
    expect,
    expect_contiguous,
    expect_range,
    power_of_two,
)

MOST_CANDIDATES = 128
MOST_VOCABULARY = 2**20
PART = 4096
"""Logits that one program reads: 38 programs a row for 151,936 tokens."""
NARROW_PART = 2048
"""As ``PART`` for logits of 16 bits, which one warp holds: 75 programs a row."""
_LINE = 256
"""Keys side by side: 8 of each lane, which are 16 bytes of logits."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TopTokens:
    """The K greatest logits of N rows, best first, on one device, all contiguous."""

    tokens: Tensor
    """[N, K] int32, the smaller token first among equal logits."""
    log_probs: Tensor
    """[N, K] float32, never above 0; all NaN where ``lse`` is not finite."""
    lse: Tensor
    """[N] float32: natural log-sum-exp of the row; NaN if one of its logits is NaN or +inf, -inf
    if all are -inf."""

    @classmethod
    def empty(cls, rows: int, count: int, device: torch.device) -> TopTokens:
        """Uninitialised results."""
        return cls(
            tokens=torch.empty(rows, count, dtype=torch.int32, device=device),
            log_probs=torch.empty(rows, count, dtype=torch.float32, device=device),
            lse=torch.empty(rows, dtype=torch.float32, device=device),
        )


def depth_topk(logits: Tensor, count: int, *, out: TopTokens | None = None) -> TopTokens:
    """The ``count`` most probable tokens of every row, in one pass over the logits.

    Seen as [R, D, K], the result is what ``build_tree`` takes. A row whose logits are no
    distribution gets NaN for log-probabilities, which ``build_tree`` answers with a tree of the
    root alone; NaN counts as -inf in the choice of tokens.

    Args:
        logits: [N, V] float32, bfloat16 or float16, the last axis without gaps, N = R * D.
        count: K, 1 to 128 and at most V.
        out: results to write into instead of new ones.

    Returns:
        Tokens, log-probabilities and log-sum-exp.

    Raises:
        ValueError: a shape, type, device or size is not as said, or it is not a CUDA device.
    """
    top = _check(logits, count, out)
    if logits.shape[0]:
        _depth_topk(logits, top.tokens, top.log_probs, top.lse)
    return top


def depth_topk_reference(logits: Tensor, count: int, *, out: TopTokens | None = None) -> TopTokens:
    """What ``depth_topk`` returns, on any device, by sorting; computes in float64.

    Args:
        logits: see there.
        count: see there.
        out: see there.

    Returns:
        Tokens, log-probabilities and log-sum-exp.

    Raises:
        ValueError: as there, except that any device will do.
    """
    top = _check(logits, count, out)
    values = logits.double()
    lse = values.logsumexp(1)
    lse = lse.masked_fill(lse == torch.inf, torch.nan)
    chosen = values.masked_fill(values.isnan(), -torch.inf)
    order = chosen.sort(dim=1, descending=True, stable=True).indices[:, :count]
    log_probs = chosen.gather(1, order) - lse[:, None]
    log_probs = torch.where(lse.isfinite()[:, None], log_probs.clamp(max=0.0), torch.nan)
    top.tokens.copy_(order)
    top.log_probs.copy_(log_probs)
    top.lse.copy_(lse)
    return top


@torch.library.custom_op("jetflow_kernels::depth_topk", mutates_args=("tokens", "log_probs", "lse"))
def _depth_topk(logits: Tensor, tokens: Tensor, log_probs: Tensor, lse: Tensor) -> None:
    launch = _select_wide if logits.dtype == torch.float32 else _select_narrow
    launch(logits, tokens, log_probs, lse)


def _select_wide(logits: Tensor, tokens: Tensor, log_probs: Tensor, lse: Tensor) -> None:
    """With keys of 64 bits: a logit of 32 above its token."""
    from jetflow_kernels.round.vocabulary_kernel import topk_merge_kernel, topk_part_kernel

    rows, vocabulary = logits.shape
    count = tokens.shape[1]
    part, parts = split_vocabulary(vocabulary, count)
    device = logits.device
    with device_of(topk_part_kernel, logits):
        keys = torch.empty(rows, parts, count, dtype=torch.int64, device=device)
        maxima, sums = torch.empty(2, rows, parts, dtype=torch.float32, device=device)
        topk_part_kernel[(rows, parts)](
            logits, keys, maxima, sums, logits.stride(0), vocabulary, parts, count,
            PART=part, num_warps=4,
        )  # fmt: skip
        topk_merge_kernel[(rows,)](
            keys, maxima, sums, tokens, log_probs, lse, parts, count,
            PARTS=power_of_two(parts), KEYS=power_of_two(parts * count), num_warps=4,
        )  # fmt: skip


def _select_narrow(logits: Tensor, tokens: Tensor, log_probs: Tensor, lse: Tensor) -> None:
    """With keys of 32 bits: a logit of 16 above its place."""
    from jetflow_kernels.round.topk_kernel import narrow_merge_kernel, narrow_part_kernel

    rows, vocabulary = logits.shape
    count = tokens.shape[1]
    part, parts = split_vocabulary(vocabulary, count, NARROW_PART)
    device = logits.device
    with device_of(narrow_part_kernel, logits):
        keys = torch.empty(rows, parts, count, dtype=torch.int32, device=device)
        maxima, sums = torch.empty(2, rows, parts, dtype=torch.float32, device=device)
        narrow_part_kernel[(rows, parts)](
            logits, keys, maxima, sums, logits.stride(0), vocabulary, parts, count,
            **lines_of(part), num_warps=warps_of(part),
        )  # fmt: skip
        merged = power_of_two(parts * count, least=32)
        narrow_merge_kernel[(rows,)](
            logits, keys, maxima, sums, tokens, log_probs, lse, logits.stride(0), parts, count,
            PART=part, PARTS=power_of_two(parts), COUNT=power_of_two(count),
            **lines_of(merged), num_warps=warps_of(merged),
        )  # fmt: skip


@_depth_topk.register_fake
def _(logits: Tensor, tokens: Tensor, log_probs: Tensor, lse: Tensor) -> None:
    """The results are written in place; nothing is made."""


def split_vocabulary(vocabulary: int, count: int, most: int = PART) -> tuple[int, int]:
    """Logits of one part, and the parts of a row.

    Args:
        vocabulary: V.
        count: tokens wanted of each part.
        most: logits of a part, if not more are needed.

    Returns:
        The size of a part, a power of two; the number of parts. Few enough that one program can
        hold all keys of a row, 8192 of them.
    """
    part = power_of_two(min(vocabulary, most), least=32)
    while -(-vocabulary // part) * count > 8192:
        part *= 2
    return part, -(-vocabulary // part)


def lines_of(keys: int) -> dict[str, int]:
    """How a program of ``keys`` keys, a power of two, arranges them."""
    line = min(keys, _LINE)
    return {"LINES": keys // line, "LINE": line}


def warps_of(keys: int) -> int:
    """Warps of a program of so many keys: 64 of a lane, and one warp if that is enough.

    A warp alone finds the greatest key in one instruction; several have to wait for each other.
    """
    return max(1, keys // 2048)


def _check(logits: Tensor, count: int, out: TopTokens | None) -> TopTokens:
    device = logits.device
    expect("logits", logits, (-1, -1), LOGITS, device)
    rows, vocabulary = logits.shape
    expect_range("the vocabulary V of logits", vocabulary, 1, MOST_VOCABULARY)
    if logits.stride(1) != 1:
        raise ValueError(f"logits must have no gaps in a row, got strides {logits.stride()}")
    expect_range("count", count, 1, min(MOST_CANDIDATES, vocabulary))
    if out is None:
        return TopTokens.empty(rows, count, device)
    for name, tensor, shape, dtype in (
        ("out.tokens", out.tokens, (rows, count), torch.int32),
        ("out.log_probs", out.log_probs, (rows, count), torch.float32),
        ("out.lse", out.lse, (rows,), torch.float32),
    ):
        expect(name, tensor, shape, (dtype,), device)
        expect_contiguous(name, tensor)
    return out
