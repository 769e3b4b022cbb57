"""The rows on the device: their caches, and the two programs over them, a step and a pass.

A step has one shape whatever the rows do: a row that has finished goes on repeating its last token
until it is given a new prompt. A pass over prompts has one shape too (on a GPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jetflow_core.documents import (
    Documents,
    packed_attention,
    packs_documents,
    separate_attention,
)
from jetflow_core.offline.attention import RowAttention
from jetflow_core.offline.jobs import Job
from jetflow_core.offline.passes import PassInputs, PassShape
from jetflow_core.offline.picking import pick_tokens
from jetflow_core.offline.programs import Programs
from jetflow_core.offline.snapshot import Snapshot
from jetflow_core.offline.stack import Stack

PASS_TOKENS = 4096
"""Tokens of a pass over prompts, unless one prompt is longer."""
PASS_PLACES = 128
"""Most prompts of a pass."""


class Rows:
    """Static buffers of ``rows`` sequences, and of a spare one for what belongs to none.

    Args:
        stack: the target.
        attend: attention of a step.
        rows: sequences decoded at once.
        capacity: columns of a row's cache.
        longest_prompt: in tokens.
        max_new_tokens: longest answer.
    """

    def __init__(
        self,
        stack: Stack,
        attend: RowAttention,
        *,
        rows: int,
        capacity: int,
        longest_prompt: int,
        max_new_tokens: int,
    ) -> None:
        self.stack, self.attend, self.rows = stack, attend, rows
        self.max_new_tokens = max_new_tokens
        device, states = stack.device, rows + 1
        cache = (stack.num_layers, states, capacity, stack.num_kv_heads, stack.head_dim)
        self.keys = torch.zeros(cache, dtype=stack.dtype, device=device)
        self.values = torch.zeros(cache, dtype=stack.dtype, device=device)
        self.each = torch.arange(rows, device=device)
        self.tokens = torch.zeros(states, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(states, dtype=torch.int64, device=device)
        self.written = torch.zeros(states, dtype=torch.int64, device=device)
        self.done = torch.ones(states, dtype=torch.bool, device=device)
        self.temperatures = torch.zeros(states, device=device)
        self.uniforms = torch.zeros(states, max_new_tokens, device=device)
        self.answers = torch.zeros(states, max_new_tokens, dtype=torch.int64, device=device)
        self.stops = torch.tensor(tuple(stack.stop_tokens) or (-1,), device=device)
        self.pass_shape = PassShape(
            tokens=max(PASS_TOKENS, longest_prompt),
            places=min(PASS_PLACES, rows),
            longest=longest_prompt,
            new_tokens=max_new_tokens,
        )
        self._packed = packs_documents(device, stack.dtype, stack.head_dim)
        self._inputs = PassInputs.empty(self.pass_shape, device) if self._packed else None
        self._programs = Programs(device)

    def clear(self) -> None:
        """No row has anything to write."""
        self.done.fill_(True)
        for each in (self.tokens, self.lengths, self.written):
            each.zero_()

    def snapshot(self) -> Snapshot:
        """A place for what rows have written: ``done``, ``written`` and ``answers``."""
        return Snapshot((self.done, self.written, self.answers))

    def step(self, longest: int, *, sampled: bool) -> None:
        """Give every row that is not done its next token.

        Args:
            longest: a bound of the columns that a row sees, its new token's included.
            sampled: False promises that no row has a temperature.
        """
        changes = (self.tokens, self.lengths, self.written, self.done, self.answers)
        program = partial(self._step, longest, sampled)
        self._programs.run(("step", longest, sampled), program, changes)

    def read(self, jobs: Sequence[Job], rows: NDArray[np.int64]) -> None:
        """Let ``rows`` begin with ``jobs``: their prompts are read, their first tokens picked.

        Args:
            jobs: as many as fit into ``pass_shape``.
            rows: one for each.
        """
        device = self.stack.device
        cuda = device.type == "cuda"
        shape = self.pass_shape if cuda or self._packed else self._fitting(jobs)
        host = PassInputs.empty(shape, torch.device("cpu"), pinned=cuda)
        host.fill(jobs, rows, spare=self.rows)
        sampled = any(job.temperature > 0 for job in jobs)
        if self._inputs is None:
            self._read(PassInputs(shape, host.flat.to(device)), sampled)
            return
        self._inputs.flat.copy_(host.flat, non_blocking=True)
        # A second run over the same inputs changes nothing.
        self._programs.run(("pass", sampled), partial(self._read, self._inputs, sampled))

    def _fitting(self, jobs: Sequence[Job]) -> PassShape:
        """Without padding: what is never captured needs none."""
        return PassShape(
            tokens=sum(len(job.prompt) for job in jobs),
            places=len(jobs),
            longest=self.pass_shape.longest,
            new_tokens=self.max_new_tokens,
        )

    def _read(self, inputs: PassInputs, sampled: bool) -> None:
        stack = self.stack
        sight = self._sight(inputs)
        rope = stack.rope(inputs.positions[None])
        x = stack.embed(inputs.tokens[None])
        for layer in range(stack.num_layers):
            q, k, v = stack.project(layer, x, rope)
            where = (inputs.rows, inputs.positions)
            self.keys[layer].index_put_(where, k[0].transpose(0, 1))
            self.values[layer].index_put_(where, v[0].transpose(0, 1))
            x = stack.finish(layer, x, _attend_prompts(q, k, v, sight))
        places = inputs.places
        self.lengths[places] = inputs.positions[inputs.last] + 1
        self.temperatures[places] = inputs.temperatures
        self.uniforms[places] = inputs.uniforms
        self.written.index_fill_(0, places, 0)
        self.done.index_fill_(0, places, False)
        self._record(places, x[0][inputs.last], sampled=sampled)

    def _sight(self, inputs: PassInputs) -> Documents | list[int]:
        if self._packed:
            return Documents(inputs.starts.to(torch.int32), inputs.shape.longest)
        starts: list[int] = inputs.starts.tolist()
        return starts

    def _step(self, longest: int, sampled: bool) -> None:
        """Run the target on the newest token of every row and record the next one."""
        stack, lengths = self.stack, self.lengths[: self.rows]
        rope = stack.rope(lengths[:, None])
        x = stack.embed(self.tokens[: self.rows, None])
        seen = (lengths + 1).to(torch.int32)
        for layer in range(stack.num_layers):
            q, k, v = stack.project(layer, x, rope)
            keys, values = self.keys[layer, : self.rows], self.values[layer, : self.rows]
            keys.index_put_((self.each, lengths), k[:, :, 0])
            values.index_put_((self.each, lengths), v[:, :, 0])
            out = self.attend(q[:, :, 0], keys, values, seen, longest)
            x = stack.finish(layer, x, out.flatten(1)[:, None])
        self._record(self.each, x[:, 0], sampled=sampled)
        # A finished row goes back to its first column, where its attention costs next to nothing.
        lengths.add_(1).mul_(~self.done[: self.rows])

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


def _attend_prompts(q: Tensor, k: Tensor, v: Tensor, sight: Documents | list[int]) -> Tensor:
    if not isinstance(sight, Documents):
        return separate_attention(q, k, v, sight)
    groups = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(groups, dim=1) for each in (k, v))
    return packed_attention(q, k, v, sight)
