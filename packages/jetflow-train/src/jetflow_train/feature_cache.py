"""The target's hidden states of a small corpus, captured once and kept in a file.

A step captures them anew by default, which needs no room and costs little beside the loss. Of
data that is small and learnt from many times they can be kept instead: a step then runs none of the
target's layers. Kept and fresh ones differ by rounding, since a row holds other neighbours.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from jetflow_train.estimate import size
from jetflow_train.files import write_atomic
from jetflow_train.packing import build_batch, pack
from jetflow_train.shards import Corpus, DataMismatchError
from jetflow_train.step import batch_sight, put
from jetflow_train.target import FrozenTarget

FORMAT, MARKS = "jetflow-features/1", "marks"
ROWS = 8
"""Packed rows of a pass that captures."""


@dataclass(frozen=True, slots=True, eq=False)
class FeatureCache:
    """Hidden states in host memory, in the order of the corpus's tokens.

    Attributes:
        features: ``[tokens, taps * hidden]`` in the target's type.
        final: ``[tokens, hidden]``, the normed last ones.
    """

    features: Tensor
    final: Tensor

    def rows(self, places: NDArray[np.int64], device: torch.device) -> tuple[Tensor, Tensor]:
        """What ``capture`` of the target gives for packed rows.

        Args:
            places: int64 ``[R, T]``, the tokens' numbers in the corpus; -1 in padding, for which
                anything may come back, since nothing attends to it.
            device: where to.

        Returns:
            ``[R, T, taps * hidden]`` and ``[R, T, hidden]``.
        """
        index = torch.from_numpy(places.clip(min=0))
        return self.features[index].to(device), self.final[index].to(device)


def open_cache(
    path: Path,
    target: FrozenTarget,
    corpus: Corpus,
    taps: Sequence[int],
    width: int,
    report: Callable[[str], None],
) -> FeatureCache:
    """The cache in ``path``; captured and written now where there is none.

    Args:
        path: the file.
        target: whose hidden states they are.
        corpus: of these texts.
        taps: layers that are kept.
        width: tokens of a text that are kept at most.
        report: takes lines of progress.

    Raises:
        DataMismatchError: the file holds something else; what differs is named.
        OSError: there is not enough room for it.
        OutputError: it cannot be written.
    """
    marks = _marks(target, corpus, taps, width)
    if path.exists():
        return _read(path, marks)
    needed = len(corpus.tokens) * (len(taps) + 1) * target.shape.hidden_size * target.dtype.itemsize
    _check_room(path, needed)
    report(f"hidden states of {len(corpus.tokens):,} tokens are captured, {size(needed)}")
    cache = _captured(target, corpus, taps, width)
    tensors = {"features": cache.features, "final": cache.final}
    told = {MARKS: json.dumps(marks)}
    write_atomic(path, lambda temporary: save_file(tensors, temporary, told))
    return cache


def _captured(
    target: FrozenTarget, corpus: Corpus, taps: Sequence[int], width: int
) -> FeatureCache:
    tokens, hidden = len(corpus.tokens), target.shape.hidden_size
    features = torch.zeros(tokens, len(taps) * hidden, dtype=target.dtype)
    final = torch.zeros(tokens, hidden, dtype=target.dtype)
    rows = pack(corpus, width, seed=0, epoch=0)
    for start in range(0, len(rows), ROWS):
        some = rows[start : start + ROWS]
        batch = build_batch(corpus, some, width=width, anchors=1, depth=1, key=(0, 0))
        found = target.capture(
            put(batch.tokens, target.device),
            put(batch.positions, target.device),
            batch_sight(target, batch.documents),
            taps,
        )
        real = batch.places >= 0
        where = torch.from_numpy(batch.places[real])
        for kept, new in zip((features, final), found, strict=True):
            kept[where] = new.cpu()[torch.from_numpy(real)]
    return FeatureCache(features, final)


def _read(path: Path, marks: Mapping[str, Any]) -> FeatureCache:
    try:
        with safe_open(path, framework="pt") as file:
            stored = json.loads((file.metadata() or {}).get(MARKS, "{}"))
            if not isinstance(stored, dict) or stored.get("format") != FORMAT:
                raise DataMismatchError(f"{path} holds no hidden states of format {FORMAT}")
            for name, value in marks.items():
                if stored.get(name) != value:
                    raise DataMismatchError(
                        f"{path} holds hidden states of another {name}: {stored.get(name)}, "
                        f"where this run has {value}"
                    )
            return FeatureCache(file.get_tensor("features"), file.get_tensor("final"))
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, DataMismatchError):
            raise
        raise DataMismatchError(f"{path} holds no hidden states: {error}") from error


def _check_room(path: Path, needed: int) -> None:
    there = path.absolute().parent
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed > free:
        raise OSError(f"--cache needs {size(needed)}, and {there} has {size(free)} left")


def _marks(target: FrozenTarget, corpus: Corpus, taps: Sequence[int], width: int) -> dict[str, Any]:
    """All that kept hidden states depend on, ready for JSON."""
    texts = hashlib.sha256()
    for array in (corpus.tokens, corpus.offsets, corpus.prompt_len):
        texts.update(np.ascontiguousarray(array).tobytes())
    return {
        "format": FORMAT,
        "target": dict(target.fingerprint),
        "dtype": str(target.dtype).removeprefix("torch."),
        "data": texts.hexdigest(),
        "taps": list(taps),
        "width": width,
    }
