"""Prompts one behind the other: what a pass over them reads, in one buffer that one copy fills."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jetflow_core.offline.jobs import Job

_INT64, _FLOAT32 = 8, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PassShape:
    """Sizes of a pass."""

    tokens: int
    """Of all prompts and the padding behind them."""
    places: int
    """Prompts at most."""
    longest: int
    """Tokens of the longest prompt, and of the longest piece of padding."""
    new_tokens: int
    """Random numbers of a prompt."""

    @property
    def starts(self) -> int:
        """Most prompts and pieces of padding, and the end."""
        return self.places + self.tokens // self.longest + 2

    @property
    def sizes(self) -> tuple[int, ...]:
        """int64 values of each part of the buffer; the last one holds float32, two in each."""
        floats = self.places * (1 + self.new_tokens)
        whole = (self.tokens, self.tokens, self.tokens, self.starts, self.places, self.places)
        return (*whole, -(-floats * _FLOAT32 // _INT64))


class PassInputs:
    """Views of one flat int64 buffer, on the host or on a device.

    Attributes:
        tokens: ``[tokens]``.
        positions: ``[tokens]``, of each token in its prompt; also its column of the cache.
        rows: ``[tokens]``: the row of the cache whose prompt it is.
        starts: ``[starts]``: where each prompt begins, then the end, repeated.
        last: ``[places]``: the last token of each prompt.
        places: ``[places]``: the row of each prompt.
        temperatures: float32 ``[places]``.
        uniforms: float32 ``[places, new_tokens]``.
    """

    def __init__(self, shape: PassShape, flat: Tensor) -> None:
        self.shape, self.flat = shape, flat
        *whole, tail = flat.split(shape.sizes)
        self.tokens, self.positions, self.rows, self.starts, self.last, self.places = whole
        floats = tail.view(torch.float32)
        self.temperatures = floats[: shape.places]
        self.uniforms = floats[shape.places : shape.places * (1 + shape.new_tokens)].view(
            shape.places, shape.new_tokens
        )

    @classmethod
    def empty(cls, shape: PassShape, device: torch.device, *, pinned: bool = False) -> PassInputs:
        """Inputs of zeros."""
        size = sum(shape.sizes)
        flat = torch.zeros(size, dtype=torch.int64, device=device, pin_memory=pinned)
        return cls(shape, flat)

    def fill(self, jobs: Sequence[Job], rows: NDArray[np.int64], spare: int) -> None:
        """Write ``jobs`` into fresh inputs on the host.

        Padding is more prompts, of token 0 and in the row ``spare``, so that nothing that is
        computed of it is ever undefined.

        Args:
            jobs: at most ``places``, with at most ``tokens`` tokens in all.
            rows: of the cache, one for each job.
            spare: a row that nobody reads.
        """
        shape, count = self.shape, len(jobs)
        prompts = [len(job.prompt) for job in jobs]
        used = sum(prompts)
        whole, rest = divmod(shape.tokens - used, shape.longest)
        lengths = np.asarray([*prompts, *[shape.longest] * whole, *[rest] * (rest > 0)])
        ends = lengths.cumsum()
        begins = ends - lengths
        owners = np.full(len(lengths), spare)
        owners[:count] = rows
        self.tokens.numpy()[:used] = np.concatenate([job.prompt for job in jobs])
        self.positions.numpy()[:] = np.arange(shape.tokens) - begins.repeat(lengths)
        self.rows.numpy()[:] = owners.repeat(lengths)
        starts, places = self.starts.numpy(), self.places.numpy()
        starts[: len(begins)], starts[len(begins) :] = begins, shape.tokens
        self.last.numpy()[:count] = ends[:count] - 1
        places[:count], places[count:] = rows, spare
        temperatures = [job.temperature for job in jobs]
        self.temperatures.numpy()[:count] = temperatures
        uniforms = self.uniforms.numpy()
        for at, (job, temperature) in enumerate(zip(jobs, temperatures, strict=True)):
            if temperature > 0:
                uniforms[at] = job.uniforms[: shape.new_tokens]


def cut_into_passes(jobs: Sequence[Job], tokens: int, places: int) -> Iterator[list[Job]]:
    """``jobs`` in their order, in passes that the next job would not have fitted into."""
    part: list[Job] = []
    used = 0
    for job in jobs:
        if part and (used + len(job.prompt) > tokens or len(part) == places):
            yield part
            part, used = [], 0
        part.append(job)
        used += len(job.prompt)
    if part:
        yield part
