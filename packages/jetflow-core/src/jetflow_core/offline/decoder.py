"""Rows that decode side by side, each taking the next prompt as soon as its answer is done.

A step has one shape whatever the rows do: a row that has finished goes on repeating its last token
into the same place until it is given a new prompt. So a step can be captured once as a CUDA graph,
and the host looks at the rows only every few steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from jetflow_core.offline.attention import RowAttention
from jetflow_core.offline.jobs import Answer, Job
from jetflow_core.offline.picking import pick_tokens
from jetflow_core.offline.stack import Stack

COLUMNS = 64
"""Steps are captured for lengths up to the next multiple of this."""
PREFILL_TOKENS = 1 << 16
"""Most tokens, padding included, of one pass over prompts."""


class RowDecoder:
    """Static buffers of ``rows`` sequences.

    Args:
        stack: the target.
        attend: attention of a step.
        rows: sequences decoded at once.
        capacity: longest prompt plus answer, in tokens.
        max_new_tokens: longest answer.
        check_every: steps between two looks at the rows.
        refill: fewest free rows for which prompts are read while others decode.

    Raises:
        ValueError: a size is below 1, or the target has fewer positions than ``capacity``.
    """

    def __init__(
        self,
        stack: Stack,
        attend: RowAttention,
        *,
        rows: int,
        capacity: int,
        max_new_tokens: int,
        check_every: int = 8,
        refill: int = 1,
    ) -> None:
        sizes = {"rows": rows, "capacity": capacity, "max_new_tokens": max_new_tokens,
                 "check_every": check_every, "refill": refill}  # fmt: skip
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if capacity > stack.max_positions:
            raise ValueError(
                f"prompt and answer may need {capacity} positions, the target has "
                f"{stack.max_positions}"
            )
        self.stack, self.attend, self.rows = stack, attend, rows
        self.longest, self.max_new_tokens = capacity, max_new_tokens
        self.check_every, self.refill = check_every, min(refill, rows)
        device = stack.device
        self.capacity = -(-capacity // COLUMNS) * COLUMNS
        cache = (stack.num_layers, rows, self.capacity, stack.num_kv_heads, stack.head_dim)
        self.keys = torch.zeros(cache, dtype=stack.dtype, device=device)
        self.values = torch.zeros(cache, dtype=stack.dtype, device=device)
        self.each = torch.arange(rows, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        self.written = torch.zeros(rows, dtype=torch.int64, device=device)
        self.done = torch.ones(rows, dtype=torch.bool, device=device)
        self.temperatures = torch.zeros(rows, device=device)
        self.uniforms = torch.zeros(rows, max_new_tokens, device=device)
        self.answers = torch.zeros(rows, max_new_tokens, dtype=torch.int64, device=device)
        self.stops = torch.tensor(tuple(stack.stop_tokens) or (-1,), device=device)
        self._jobs: list[Job | None] = [None] * rows
        # What a step asks of all jobs, so that no step walks through a list of them.
        self._running = np.zeros(rows, dtype=np.bool_)
        self._sampled = np.zeros(rows, dtype=np.bool_)
        self._ends = np.zeros(rows, dtype=np.int64)
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    @torch.no_grad()
    def answer(self, jobs: Iterable[Job]) -> Iterator[Answer]:
        """The answers of all jobs, in the order in which they get done.

        Jobs are taken from the iterable as rows become free, never all at once. An answer depends
        on its own job alone, up to the rounding of the device's matrix products.

        Raises:
            ValueError: a job does not fit the decoder; no row is changed by it.
        """
        waiting = iter(jobs)
        self._clear()
        try:
            while self._admit(waiting):
                for _ in range(self.check_every):
                    self._advance()
                yield from self._harvest()
        finally:
            self._clear()

    def _clear(self) -> None:
        self._jobs = [None] * self.rows
        for host in (self._running, self._sampled, self._ends):
            host[:] = 0
        self.done.fill_(True)
        for rows in (self.tokens, self.lengths, self.written):
            rows.zero_()

    def _admit(self, waiting: Iterator[Job]) -> bool:
        """Give free rows new prompts; False where nothing is left to decode."""
        free = np.flatnonzero(~self._running).tolist()
        if len(free) >= self.refill or len(free) == self.rows:
            taken = list(islice(waiting, len(free)))
            for job in taken:
                self._check(job)
            # Prompts of like length are read together, so that little of a pass is padding.
            taken.sort(key=lambda job: len(job.prompt))
            places = iter(free)
            for batch in _batches(taken):
                self._prefill(batch, [next(places) for _ in batch])
        return bool(self._running.any())

    def _check(self, job: Job) -> None:
        if len(job.prompt) + self.max_new_tokens > self.longest:
            raise ValueError(
                f"job {job.number}: a prompt of {len(job.prompt)} and {self.max_new_tokens} new "
                f"tokens exceed the capacity of {self.longest}"
            )
        if job.temperature > 0 and len(job.uniforms) < self.max_new_tokens:
            raise ValueError(
                f"job {job.number} brings {len(job.uniforms)} random numbers for "
                f"{self.max_new_tokens} new tokens"
            )

    def _prefill(self, batch: list[Job], places: list[int]) -> None:
        for row, job in zip(places, batch, strict=True):
            self._jobs[row] = job
        lengths = np.asarray([len(job.prompt) for job in batch], dtype=np.int64)
        temperatures = np.asarray([job.temperature for job in batch], dtype=np.float32)
        self._running[places], self._ends[places] = True, lengths
        self._sampled[places] = [job.temperature > 0 for job in batch]
        padded = np.zeros((len(batch), int(lengths.max())), dtype=np.int64)
        uniforms = np.zeros((len(batch), self.max_new_tokens), dtype=np.float32)
        for at, job in enumerate(batch):
            padded[at, : len(job.prompt)] = job.prompt
            if job.temperature > 0:
                uniforms[at] = job.uniforms[: self.max_new_tokens]
        rows, ends = self._put(np.asarray(places)), self._put(lengths)
        x = self._read(self._put(padded), rows)
        self.temperatures[rows] = self._put(temperatures)
        self.uniforms[rows] = self._put(uniforms)
        self.lengths[rows] = ends
        self.written[rows] = 0
        self.done[rows] = False
        last = x[torch.arange(len(batch), device=x.device), ends - 1]
        self._record(rows, last, sampled=bool(self._sampled[places].any()))

    def _read(self, tokens: Tensor, rows: Tensor) -> Tensor:
        # Prompts stand at the left: under a causal mask no token sees the padding behind it.
        stack, width = self.stack, tokens.shape[1]
        rope = stack.rope(torch.arange(width, device=tokens.device).expand_as(tokens))
        x = stack.embed(tokens)
        for layer in range(stack.num_layers):
            q, k, v = stack.project(layer, x, rope)
            self.keys[layer, rows, :width] = k.transpose(1, 2)
            self.values[layer, rows, :width] = v.transpose(1, 2)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = stack.finish(layer, x, out.transpose(1, 2).flatten(2))
        return x

    def _advance(self) -> None:
        self._ends += self._running
        longest = min(self.capacity, -(-int(self._ends.max()) // COLUMNS) * COLUMNS)
        sampled = bool(self._sampled.any())
        if self.stack.device.type != "cuda":
            self._step(longest, sampled)
            return
        if (longest, sampled) not in self._graphs:
            self._graphs[longest, sampled] = self._capture(longest, sampled)
        self._graphs[longest, sampled].replay()

    def _step(self, longest: int, sampled: bool) -> None:
        """Run the target on the newest token of every row and record the next one."""
        stack = self.stack
        rope = stack.rope(self.lengths[:, None])
        x = stack.embed(self.tokens[:, None])
        seen = (self.lengths + 1).to(torch.int32)
        for layer in range(stack.num_layers):
            q, k, v = stack.project(layer, x, rope)
            keys, values = self.keys[layer], self.values[layer]
            keys.index_put_((self.each, self.lengths), k[:, :, 0])
            values.index_put_((self.each, self.lengths), v[:, :, 0])
            out = self.attend(q[:, :, 0], keys, values, seen, longest)
            x = stack.finish(layer, x, out.flatten(1)[:, None])
        # A finished row stays where it is, so that it writes nowhere else.
        self.lengths.add_(~self.done)
        self._record(self.each, x[:, 0], sampled=sampled)

    def _record(self, rows: Tensor, x: Tensor, *, sampled: bool) -> None:
        done, written = self.done[rows], self.written[rows]
        place = written.clamp(max=self.max_new_tokens - 1)
        picked = pick_tokens(
            self.stack.logits(x), self.temperatures[rows], self.uniforms[rows, place],
            sampled=sampled,
        )  # fmt: skip
        picked = torch.where(done, self.tokens[rows], picked)
        self.answers[rows, place] = torch.where(done, self.answers[rows, place], picked)
        written = written + ~done
        self.tokens[rows], self.written[rows] = picked, written
        stopped = (picked[:, None] == self.stops).any(-1)
        self.done[rows] = done | stopped | (written >= self.max_new_tokens)

    def _harvest(self) -> Iterator[Answer]:
        rows = np.flatnonzero(self._running & self.done.cpu().numpy())
        if not len(rows):
            return
        where = self._put(rows)
        answers, written = self.answers[where].cpu().numpy(), self.written[where].cpu().numpy()
        # What a backend is told of a row must not exceed the longest row that runs.
        self.lengths[where] = 0
        stops = set(self.stack.stop_tokens)
        jobs = [self._jobs[row] for row in rows]
        self._running[rows], self._sampled[rows], self._ends[rows] = False, False, 0
        for row, job, answer, count in zip(rows, jobs, answers, written, strict=True):
            self._jobs[row] = None
            tokens = answer[:count].copy()
            if job is not None:
                yield Answer(job.number, tokens, int(tokens[-1]) in stops)

    def _capture(self, longest: int, sampled: bool) -> torch.cuda.CUDAGraph:
        # A step that is only tried must leave no trace in the rows.
        state = (self.tokens, self.lengths, self.written, self.done, self.answers)
        before = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(longest, sampled)
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, kept in zip(state, before, strict=True):
            tensor.copy_(kept)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._step(longest, sampled)
        return graph

    def _put(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.stack.device)


def _batches(jobs: list[Job]) -> Iterator[list[Job]]:
    """Jobs, sorted by length, in parts of at most ``PREFILL_TOKENS`` padded tokens."""
    part: list[Job] = []
    for job in jobs:
        if part and (len(part) + 1) * len(job.prompt) > PREFILL_TOKENS:
            yield part
            part = []
        part.append(job)
    if part:
        yield part
