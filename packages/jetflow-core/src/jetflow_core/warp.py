"""The steps that turn one row of logits into the law a token is drawn from; pure functions.

Every function takes a row `[V]` and returns a new row of the same shape, type and device. -inf
means forbidden, and no step can make a forbidden token possible again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

FORBIDDEN = -math.inf

_NUCLEUS_GUESS = 512


def penalise(
    row: Tensor,
    seen: Tensor,
    generated: Tensor,
    *,
    repetition: float,
    frequency: float,
    presence: float,
) -> Tensor:
    """The row after the repetition, then the frequency and presence penalties.

    Args:
        row: Logits `[V]`.
        seen: Distinct ids of prompt and answer, int64, on the row's device.
        generated: Ids of the answer so far, repeats included, int64, on the row's device.
        repetition: Positive logits of `seen` are divided by it, the others multiplied.
        frequency: Subtracted once for each time an id is in `generated`.
        presence: Subtracted once from each id of `generated`.
    """
    row = row.clone()
    if repetition != 1.0:
        logits = row[seen]
        row[seen] = torch.where(logits > 0, logits / repetition, logits * repetition)
    if frequency != 0.0 or presence != 0.0:
        ids, counts = generated.unique(return_counts=True)
        row[ids] -= frequency * counts.to(row.dtype) + presence
    return row


def add_bias(row: Tensor, bias: Mapping[int, float]) -> Tensor:
    """The row with `bias` added to the logits of its keys."""
    row = row.clone()
    ids = torch.tensor(list(bias), dtype=torch.int64, device=row.device)
    row[ids] += torch.tensor(list(bias.values()), dtype=row.dtype, device=row.device)
    return row


def forbid(row: Tensor, ids: Sequence[int]) -> Tensor:
    """The row with the logits of `ids` at -inf."""
    if not ids:
        return row
    row = row.clone()
    row[torch.tensor(list(ids), dtype=torch.int64, device=row.device)] = FORBIDDEN
    return row


def completed_words(words: Sequence[Sequence[int]], generated: Sequence[int]) -> list[int]:
    """The last token of each word whose other tokens are the end of `generated`."""
    size = len(generated)
    return [
        word[-1]
        for word in words
        if len(word) - 1 <= size and tuple(generated[size - len(word) + 1 :]) == tuple(word[:-1])
    ]


def scaled(row: Tensor, temperature: float) -> Tensor:
    """`(row - max) / temperature` in float64.

    The maximum is taken off first, so that no temperature above 0 overflows; float64 keeps
    logits apart that a division in float32 would round together.
    """
    row = row.double()
    return (row - row.max()) / temperature


def keep_best(row: Tensor, count: int) -> Tensor:
    """The row with all but its `count` best logits at -inf; of equal logits the lower ids stay."""
    if count >= row.shape[0]:
        return row
    threshold = row.topk(count).values[-1]
    above = row > threshold
    ties = row == threshold
    # A plain `row >= threshold` keeps every tie, and then top_k = 1 would not be greedy.
    room = count - above.sum()
    kept = above | (ties & (ties.cumsum(0) <= room))
    return row.masked_fill(~kept, FORBIDDEN)


def keep_nucleus(row: Tensor, top_p: float) -> Tensor:
    """The row with all but the fewest best tokens whose probabilities reach `top_p` at -inf."""
    if top_p >= 1.0:
        return row
    return keep_best(row, _nucleus_size(row, top_p))


def _nucleus_size(row: Tensor, top_p: float) -> int:
    # Nuclei are mostly small, and sorting a whole vocabulary costs many times a top-k of it.
    total, size, guess = row.logsumexp(0), row.shape[0], _NUCLEUS_GUESS
    while True:
        mass = (row.topk(min(guess, size)).values - total).exp().cumsum(0)
        if guess >= size or bool(mass[-1] >= top_p):
            return min(int((mass < top_p).sum()) + 1, size)
        guess *= 8


def keep_probable(row: Tensor, min_p: float) -> Tensor:
    """The row with tokens less than `min_p` times as probable as the best one at -inf."""
    if min_p <= 0.0:
        return row
    return row.masked_fill(row < row.max() + math.log(min_p), FORBIDDEN)
