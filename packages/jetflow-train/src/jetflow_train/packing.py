"""Rows of packed sequences, and the anchors drawn in them.

Nothing here keeps state: the rows of an epoch depend on (seed, epoch), the anchors of a row and
how many true tokens its blocks begin with on (seed, step, row). A run that is resumed anywhere
therefore sees what it would have seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jetflow_train.draws import ANCHORS, EPOCH_ORDER, PREFIX_FILLS, generator
from jetflow_train.shards import Corpus

OPEN_ROWS = 32


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One step's rows, as host arrays of fixed shapes.

    Attributes:
        tokens: int64 ``[R, T]``; 0 in the padding.
        documents: int64 ``[R, T]``; which sequence of the row a column belongs to, -1 in padding.
        positions: int64 ``[R, T]``; restarts at 0 with each sequence.
        anchors: int64 ``[R, A]``; column of each block's root.
        reach: int64 ``[R, A]``; depths with a teacher: slots 1..reach count, the rest do not.
        places: int64 ``[R, T]``; which of the corpus's tokens stands here, -1 in padding.
        fill: int64 ``[R, A]``; slots 1..fill hold the text's own tokens; None: no slot does.
    """

    tokens: NDArray[np.int64]
    documents: NDArray[np.int64]
    positions: NDArray[np.int64]
    anchors: NDArray[np.int64]
    reach: NDArray[np.int64]
    places: NDArray[np.int64]
    fill: NDArray[np.int64] | None = None


def pack(corpus: Corpus, width: int, seed: int, epoch: int) -> list[NDArray[np.int64]]:
    """Sequence numbers of each row of one epoch.

    Every sequence with at least two answer tokens inside ``width`` appears once; one longer than
    ``width`` is cut there.
    """
    usable = np.flatnonzero(
        (np.minimum(corpus.lengths, width) - corpus.prompt_len >= 2) & (corpus.prompt_len >= 1)
    )
    order = generator(EPOCH_ORDER, seed, epoch).permutation(usable)
    lengths = np.minimum(corpus.lengths, width)
    full: list[list[int]] = []
    rows: list[list[int]] = []
    room: list[int] = []
    for sequence in order.tolist():
        length = int(lengths[sequence])
        place = next((i for i, left in enumerate(room) if left >= length), None)
        if place is None:
            if len(rows) == OPEN_ROWS:
                fullest = min(range(OPEN_ROWS), key=room.__getitem__)
                full.append(rows.pop(fullest))
                room.pop(fullest)
            rows.append([])
            room.append(width)
            place = len(rows) - 1
        rows[place].append(sequence)
        room[place] -= length
    return [np.asarray(row, dtype=np.int64) for row in full + rows]


def build_batch(
    corpus: Corpus,
    rows: list[NDArray[np.int64]],
    *,
    width: int,
    anchors: int,
    depth: int,
    key: tuple[int, int],
    first_row: int = 0,
    prefix_fill: float = 0.0,
) -> Batch:
    """The arrays of ``rows``.

    Args:
        corpus: the sequences.
        rows: sequence numbers of each row, from ``pack``.
        width: columns T of a row.
        anchors: blocks A of a row.
        depth: deepest depth of a block.
        key: (seed, step); with the row's number it keys the draw of the anchors.
        first_row: number of the first row within the step.
        prefix_fill: share of the blocks that begin with true tokens.

    Raises:
        ValueError: a row has no root, because its sequences hold no answer; they are named.
    """
    tokens = np.zeros((len(rows), width), dtype=np.int64)
    documents = np.full((len(rows), width), -1, dtype=np.int64)
    positions = np.zeros((len(rows), width), dtype=np.int64)
    places = np.full((len(rows), width), -1, dtype=np.int64)
    columns = np.zeros((len(rows), anchors), dtype=np.int64)
    reach = np.zeros((len(rows), anchors), dtype=np.int64)
    for r, row in enumerate(rows):
        start, candidates, limits = 0, [], []
        for number, sequence in enumerate(row.tolist()):
            text = corpus.sequence(sequence)[: width - start]
            end = start + len(text)
            tokens[r, start:end] = text
            documents[r, start:end] = number
            positions[r, start:end] = np.arange(len(text))
            places[r, start:end] = corpus.offsets[sequence] + np.arange(len(text))
            # A root may be the prompt's last token; the last token predicts nothing stored.
            roots = np.arange(start + int(corpus.prompt_len[sequence]) - 1, end - 1)
            candidates.append(roots)
            limits.append(np.minimum(end - 1 - roots, depth))
            start = end
        if not any(map(len, candidates)):
            raise ValueError(
                f"sequences {row.tolist()} hold no answer of two tokens within {width} columns: "
                "nothing could be learnt from their row"
            )
        columns[r], reach[r] = _draw(candidates, limits, anchors, (*key, first_row + r))
    fill = None
    if prefix_fill:
        fill = np.stack(
            [draw_fills(one, prefix_fill, (*key, first_row + r)) for r, one in enumerate(reach)]
        )
    return Batch(tokens, documents, positions, columns, reach, places, fill)


def _draw(
    candidates: list[NDArray[np.int64]],
    limits: list[NDArray[np.int64]],
    anchors: int,
    key: tuple[int, int, int],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    roots, reach = np.concatenate(candidates), np.concatenate(limits)
    seed, step, row = key
    draw = generator(ANCHORS, seed, (step << 20) + row)
    # Few candidates (a short row) are drawn more than once rather than leaving blocks empty.
    chosen = np.sort(draw.choice(len(roots), anchors, replace=len(roots) < anchors))
    return roots[chosen], reach[chosen]


def draw_fills(
    reach: NDArray[np.int64], share: float, key: tuple[int, int, int]
) -> NDArray[np.int64]:
    """How many true tokens each block of a row begins with.

    Drawn within what a block reaches, so that a depth is left to learn from in every block.

    Args:
        reach: int64 ``[A]``, depths with a teacher.
        share: chance of a block that reaches two depths or more to begin with true tokens.
        key: (seed, step, row), all that the draw depends on.

    Returns:
        int64 ``[A]``: 0, or evenly one of 1..reach - 1.
    """
    seed, step, row = key
    chosen, place = generator(PREFIX_FILLS, seed, (step << 20) + row).random((2, len(reach)))
    lengths = 1 + np.floor(place * (reach - 1)).astype(np.int64)
    return np.where((chosen < share) & (reach > 1), lengths, 0)


def depth_weights(
    reach: NDArray[np.int64], depth: int, gamma: float, fill: NDArray[np.int64] | None = None
) -> NDArray[np.float32]:
    """Weights ``[R, A, depth]`` of the loss rows, exp(-(d - 1) / gamma), not normalised.

    A gamma of 0 weighs all depths alike. Rows deeper than their anchor's reach weigh nothing, nor
    do the first ``fill`` ones, whose slots hold their own tokens.

    Raises:
        ValueError: ``gamma`` is negative.
    """
    if not gamma >= 0:
        raise ValueError(f"gamma must be at least 0, got {gamma}")
    depths = np.arange(1, depth + 1)
    falling = np.exp(-(depths - 1) / gamma) if gamma else np.ones(depth)
    counted = depths <= reach[..., None]
    if fill is not None:
        counted &= depths > fill[..., None]
    return (falling * counted).astype(np.float32)
