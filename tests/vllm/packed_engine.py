"""A GPU's adapter in an engine on a CPU: its caches and its steps, with torch's kernels.

Only what vLLM has for one platform alone is the CPU's: the worker and the runner's few own methods.
The attention that is not JetFlow's is done by the same reference here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from jetflow_core.rounds import DraftInputs, TorchRoundOps
from jetflow_serve.cuda import runner as runner_module
from jetflow_serve.cuda.attention import TreeRows
from jetflow_serve.cuda.runner import CudaTreeModelRunner
from jetflow_serve.engine.tree_worker import TreeWorkerBase
from jetflow_serve.leading_rows import LeadingRows, chain_words, words_for
from jetflow_serve.packed_attention import attend_leading
from jetflow_serve.packed_cache import packed_pools
from torch import Tensor
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend, CPUAttentionBackendImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.worker.cpu.model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

OPS = TorchRoundOps()


class CausalImpl(CPUAttentionBackendImpl):
    """Causal attention over packed caches, in the place of a GPU's."""

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        keys, values = packed_pools(kv_cache)
        real, page = slot_mapping >= 0, kv_cache.shape[2]
        slots = slot_mapping[real]
        keys[slots // page, slots % page] = key[: len(slot_mapping)][real]
        values[slots // page, slots % page] = value[: len(slot_mapping)][real]

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        output_scale: Any = None,
        output_block_scale: Any = None,
    ) -> Tensor:
        if attn_metadata is None:
            return output.fill_(0)
        starts = attn_metadata.query_start_loc
        counts = starts.diff()
        words = torch.zeros(int(starts[-1]), words_for(int(counts.max())), dtype=torch.int64)
        for first, rows in zip(starts.tolist(), counts.tolist(), strict=False):
            own = torch.from_numpy(chain_words(rows))
            words[first : first + rows, : own.shape[1]] = own
        prefix = attn_metadata.seq_lens[: len(counts)] - counts
        leading = LeadingRows(len(words), starts, prefix, words)
        table = attn_metadata.block_table
        attend_leading(OPS, query, kv_cache, table, leading, self.scale, output)
        return output


class PackedImpl(TreeRows, CausalImpl):
    """A GPU's attention of one layer."""


class PackedBackend(CPUAttentionBackend):
    @staticmethod
    def get_impl_cls() -> type[CPUAttentionBackendImpl]:
        return PackedImpl


class PackedRunner(CudaTreeModelRunner, CPUModelRunner):
    """A GPU's runner with the CPU's few own methods."""


class PackedWorker(TreeWorkerBase, CPUWorker):
    """Put in the place of ``jetflow_serve.engine.worker.TreeWorker``."""

    backends: ClassVar = {AttentionBackendEnum.CPU_ATTN: "packed_engine.PackedBackend"}
    attention: ClassVar = (PackedImpl,)

    def init_device(self) -> None:
        super().init_device()
        runner_module.device_ops = lambda device: OPS
        self.model_runner = PackedRunner(self.vllm_config, torch.device("cpu"))

    def load_model(self, *args: Any, **options: Any) -> None:
        super().load_model(*args, **options)
        for layer in self.vllm_config.compilation_config.static_forward_context.values():
            layer.impl.ops = OPS


def plant(runner: Any, known: list[tuple[list[int], list[int]]], seed: int = 0) -> None:
    """As ``oracle.Oracle``, in what the head proposes on the device."""
    answers = {tuple(prompt): answer for prompt, answer in known}
    random = np.random.default_rng(seed)
    prompts: dict[int, tuple[int, ...]] = {}
    add, propose = runner.model_state.add_request, runner.speculator.drafter.propose

    def adding(index: int, request: Any) -> None:
        prompts[index] = tuple(request.prompt_token_ids)
        add(index, request)

    def planted(inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        tokens = propose(inputs)[0].clone()
        requests, depths, width = tokens.shape
        table = np.full((requests, depths, width, width), -np.inf)
        for line in inputs.live.nonzero().flatten().tolist():
            prompt = prompts[int(inputs.slots[line])]
            truth = answers.get(prompt, [])[int(inputs.prefix_len[line]) + 1 - len(prompt) :]
            for depth in range(depths):
                place = int(random.integers(width))
                if depth < len(truth) and random.random() > 0.12:
                    own = tokens[line, depth]
                    own[own == truth[depth]] = own[place].clone()
                    own[place] = truth[depth]
                for parent in range(width):
                    order = random.permutation(np.delete(np.arange(width), place))
                    ranked = np.insert(order, int(random.integers(min(3, width))), place)
                    table[line, depth, parent, ranked] = -np.log(2.0) * np.arange(1, width + 1)
        return tokens, torch.from_numpy(table)

    runner.model_state.add_request = adding
    runner.speculator.drafter.propose = planted
