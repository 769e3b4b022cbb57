"""Batched decoding over a static KV cache, one CUDA graph a step on a GPU.

Prompts of one group are padded on the left to one length, so that every sequence writes the same
column of the cache at every step and the step has no data-dependent shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from jetflow_train.target import FrozenTarget
from jetflow_train.target_layer import (
    attention_kernels,
    finish,
    full_attention,
    mask_bias,
    project,
)

EXTENT_STEP = 64
PREFILL_TOKENS = 1 << 16
CHECK_EVERY = 16


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Prompts that are answered together, and how.

    ``uniforms`` holds the one random number in [0, 1) that each sampled token uses.
    """

    prompts: Sequence[NDArray[np.int64]]
    temperatures: NDArray[np.float32]
    uniforms: NDArray[np.float32]
    """``[max_new_tokens, rows]``"""


def pick_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor, sampled: bool) -> Tensor:
    """One token a row: the best where the temperature is 0, else by inverting the distribution.

    Args:
        logits: ``[B, V]``.
        temperatures: ``[B]``; 0 is greedy.
        uniforms: ``[B]`` in [0, 1).
        sampled: False promises that every temperature is 0.

    Returns:
        int64 ``[B]``.
    """
    best = logits.argmax(-1)
    if not sampled:
        return best
    wide = logits.float() / temperatures.clamp(min=1e-3)[:, None]
    mass = torch.softmax(wide, dim=-1).cumsum(-1)
    drawn = (mass <= uniforms[:, None] * mass[:, -1:]).sum(-1).clamp(max=logits.shape[-1] - 1)
    return torch.where(temperatures > 0, drawn, best)


class BatchDecoder:
    """Static buffers and captured steps for groups of at most ``rows`` prompts.

    Args:
        target: the model that answers.
        rows: sequences decoded at once.
        capacity: longest prompt plus answer, in tokens.
        max_new_tokens: longest answer.
        compiled: fuse each layer's small operations with torch.compile.
    """

    def __init__(
        self,
        target: FrozenTarget,
        *,
        rows: int,
        capacity: int,
        max_new_tokens: int,
        compiled: bool = False,
    ) -> None:
        if capacity > target.shape.max_positions:
            raise ValueError(
                f"prompt and answer may need {capacity} positions, the target has "
                f"{target.shape.max_positions}"
            )
        self.target, self.rows, self.max_new_tokens = target, rows, max_new_tokens
        self.capacity = -(-capacity // EXTENT_STEP) * EXTENT_STEP
        device, shape = target.device, target.shape
        cache = (shape.num_layers, rows, shape.num_kv_heads, self.capacity, shape.head_dim)
        self.keys = torch.zeros(cache, dtype=target.dtype, device=device)
        self.values = torch.zeros(cache, dtype=target.dtype, device=device)
        self.columns = torch.arange(self.capacity, device=device)
        self.starts = torch.zeros(rows, dtype=torch.int64, device=device)
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)
        self.step_index = torch.zeros(1, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)
        self.done = torch.zeros(rows, dtype=torch.bool, device=device)
        self.temperatures = torch.zeros(rows, device=device)
        self.uniforms = torch.zeros(max_new_tokens, rows, device=device)
        self.answers = torch.zeros(rows, max_new_tokens, dtype=torch.int64, device=device)
        self.stops = torch.tensor(target.stop_tokens or (-1,), device=device)
        self._project = torch.compile(project, dynamic=False) if compiled else project
        self._finish = torch.compile(finish, dynamic=False) if compiled else finish
        self._graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}

    @torch.no_grad()
    def answer(self, group: Group) -> list[NDArray[np.int64]]:
        """Answers of a group, stop token included where one was written.

        Raises:
            ValueError: the group does not fit the decoder, or holds an empty prompt.
        """
        count = len(group.prompts)
        width = max((len(prompt) for prompt in group.prompts), default=0)
        if not 1 <= count <= self.rows or min(len(prompt) for prompt in group.prompts) < 1:
            raise ValueError(f"a group holds 1..{self.rows} prompts of >= 1 token, got {count}")
        if width + self.max_new_tokens > self.capacity:
            raise ValueError(
                f"a prompt of {width} and {self.max_new_tokens} new tokens exceed the capacity "
                f"{self.capacity}"
            )
        sampled = bool((group.temperatures > 0).any())
        with attention_kernels(self.target.device):
            self._prepare_graphs(width, sampled)
            self._prefill(group, width, sampled)
            for step in range(1, self.max_new_tokens):
                if step % CHECK_EVERY == 0 and bool(self.done.all()):
                    break
                self._advance(width + step, sampled)
        return self._collect(count)

    def _prefill(self, group: Group, width: int, sampled: bool) -> None:
        count = len(group.prompts)
        padded = np.zeros((self.rows, width), dtype=np.int64)
        starts = np.full(self.rows, width - 1, dtype=np.int64)
        for row, prompt in enumerate(group.prompts):
            starts[row] = width - len(prompt)
            padded[row, starts[row] :] = prompt
        self.temperatures.zero_()
        self.temperatures[:count] = self._put(group.temperatures)
        self.uniforms.zero_()
        self.uniforms[:, :count] = self._put(group.uniforms)
        self.starts.copy_(self._put(starts))
        tokens = self._put(padded)
        chunk = max(1, PREFILL_TOKENS // width)
        last = [self._prefill_rows(tokens, r, min(r + chunk, self.rows)) for r in
                range(0, self.rows, chunk)]  # fmt: skip
        self.cursor.fill_(width)
        self.step_index.zero_()
        self.done.zero_()
        # Rows beyond the group only fill the shape; they must not keep the group running.
        self.done[count:] = True
        self.answers.zero_()
        self._record(torch.cat(last), sampled)

    def _prefill_rows(self, tokens: Tensor, first: int, end: int) -> Tensor:
        width = tokens.shape[1]
        starts, columns = self.starts[first:end, None], self.columns[:width]
        rope = self.target.rope((columns[None] - starts).clamp(min=0))
        causal = columns[:, None] >= columns[None, :]
        real = (columns[None] >= starts)[:, None, :] & causal[None]
        # Padding sees itself: a row that sees nothing would be NaN and poison its values.
        mask = real | torch.eye(width, dtype=torch.bool, device=tokens.device)
        bias = mask_bias(mask.unsqueeze(1), self.target.dtype)
        x = self.target.embedding[tokens[first:end]]
        for index, weights in enumerate(self.target.layers):
            q, k, v = project(x, weights, rope, self.target.shape)
            self.keys[index, first:end, :, :width] = k
            self.values[index, first:end, :, :width] = v
            x = finish(x, full_attention(q, k, v, bias), weights, self.target.shape)
        return x[:, -1]

    def _step(self, extent: int, sampled: bool) -> None:
        """Run the target on the newest token of every row and record the next one."""
        columns = self.columns[:extent]
        visible = (columns[None] >= self.starts[:, None]) & (columns[None] <= self.cursor)
        bias = mask_bias(visible[:, None, None], self.target.dtype)
        rope = self.target.rope((self.cursor - self.starts)[:, None])
        x = self.target.embedding[self.tokens].unsqueeze(1)
        for index, weights in enumerate(self.target.layers):
            q, k, v = self._project(x, weights, rope, self.target.shape)
            self.keys[index].index_copy_(2, self.cursor, k)
            self.values[index].index_copy_(2, self.cursor, v)
            attended = self._attend(q, index, extent, bias)
            x = self._finish(x, attended, weights, self.target.shape)
        self.cursor.add_(1)
        self._record(x[:, 0], sampled)

    def _attend(self, q: Tensor, index: int, extent: int, bias: Tensor) -> Tensor:
        # The queries that share a key head stand side by side: keys are read once, not repeated.
        shape = self.target.shape
        groups = shape.num_heads // shape.num_kv_heads
        packed = q.reshape(self.rows, shape.num_kv_heads, groups, shape.head_dim)
        bias = bias.expand(-1, shape.num_kv_heads, groups, -1)
        out = F.scaled_dot_product_attention(
            packed, self.keys[index, :, :, :extent], self.values[index, :, :, :extent], bias
        )
        return out.reshape(self.rows, 1, -1)

    def _record(self, x: Tensor, sampled: bool) -> None:
        logits = F.linear(self.target.normed(x), self.target.lm_head)
        uniforms = self.uniforms.index_select(0, self.step_index)[0]
        picked = pick_tokens(logits, self.temperatures, uniforms, sampled)
        # A finished row repeats its stop token, which `_collect` cuts off.
        picked = torch.where(self.done, self.tokens, picked)
        self.tokens.copy_(picked)
        self.answers.index_copy_(1, self.step_index, picked[:, None])
        self.done.logical_or_((picked[:, None] == self.stops).any(-1))
        self.step_index.add_(1)

    def _advance(self, needed: int, sampled: bool) -> None:
        extent = -(-needed // EXTENT_STEP) * EXTENT_STEP
        graph = self._graphs.get((extent, sampled))
        if graph is None:
            self._step(extent, sampled)
        else:
            graph.replay()

    def _prepare_graphs(self, width: int, sampled: bool) -> None:
        # Capturing runs steps on whatever the buffers hold, so it comes before the prefill.
        if self.target.device.type != "cuda":
            return
        first = -(-(width + 1) // EXTENT_STEP) * EXTENT_STEP
        last = -(-(width + self.max_new_tokens) // EXTENT_STEP) * EXTENT_STEP
        for extent in range(first, last + 1, EXTENT_STEP):
            if (extent, sampled) not in self._graphs:
                self._graphs[extent, sampled] = self._capture(extent, sampled)

    def _capture(self, extent: int, sampled: bool) -> torch.cuda.CUDAGraph:
        self._reset_counters()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(extent, sampled)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self._reset_counters()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._step(extent, sampled)
        return graph

    def _reset_counters(self) -> None:
        self.starts.zero_()
        self.cursor.zero_()
        self.step_index.zero_()
        self.tokens.zero_()

    def _collect(self, count: int) -> list[NDArray[np.int64]]:
        written = int(self.step_index.item())
        answers = self.answers[:count, :written].cpu().numpy()
        stopped = np.isin(answers, np.asarray(self.target.stop_tokens, dtype=np.int64))
        ends = np.where(stopped.any(1), stopped.argmax(1) + 1, written)
        return [answer[:end].copy() for answer, end in zip(answers, ends, strict=True)]

    def _put(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.target.device)
