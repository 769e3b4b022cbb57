"""vLLM's model runner V2 on a GPU, with trees."""

from __future__ import annotations

from typing import Any

import torch
from jetflow_core.stacks import layer_ops_for
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from jetflow_serve.counters import Counters
from jetflow_serve.cuda.drafter import head_on_device, use_caches
from jetflow_serve.cuda.lines import TreeLines
from jetflow_serve.cuda.ops import device_ops
from jetflow_serve.cuda.records import Records
from jetflow_serve.cuda.speculator import CudaTreeSpeculator
from jetflow_serve.cuda.state import CudaTreeModelState
from jetflow_serve.cuda.step import DeviceStep
from jetflow_serve.engine.settings import read_settings
from jetflow_serve.v2.caches import one_group

logger = init_logger("vllm.jetflow")


class CudaTreeModelRunner(GPUModelRunner):
    """A model runner on a GPU whose drafts are trees."""

    speculator: CudaTreeSpeculator
    model_state: CudaTreeModelState

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        settings = self._settings = read_settings(vllm_config)
        for warning in settings.warnings:
            logger.warning("%s", warning)
        super().__init__(vllm_config, device)
        nodes = self.num_speculative_steps
        self.step = DeviceStep(
            ops=device_ops(device),
            trees=TreeLines(self.max_num_reqs, 1 + nodes, device),
            records=Records(Counters()),
            depth=min(settings.depth, nodes),
            computed=self.req_states.num_computed_tokens.gpu,
        )
        self.speculator = CudaTreeSpeculator(vllm_config, device)
        self.speculator.step = self.step
        self.speculator.chains_only = settings.options.mode == "chain"
        self.speculator.target_state_cls = self._state_class()

    def _state_class(self) -> type[CudaTreeModelState]:
        """The class of the target's state with what this runner's parts share; vLLM makes it."""
        step = self.step

        class State(CudaTreeModelState):
            """The state of this runner's model."""

            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.step = step

        return State

    @property
    def counters(self) -> Counters:
        """What trees did so far."""
        return self.step.records.counters

    def initialize_kv_cache(self, *args: Any, **options: Any) -> None:
        """As vLLM's; then the caches of target and head are known.

        Raises:
            ServeRefused: the layers of the target, or of the head, do not share their blocks.
        """
        super().initialize_kv_cache(*args, **options)
        speculator, groups = self.speculator, self.kv_cache_config.kv_cache_groups
        layers = self.vllm_config.compilation_config.static_forward_context
        drafts = speculator.draft_attn_layer_names
        group, names = one_group(groups, lambda name: name not in drafts, "target")
        block = self.block_tables.block_sizes[group]
        self.model_state.use_caches(group, [layers[name].kv_cache for name in names], block)
        group, _ = one_group(groups, lambda name: name in drafts, "head")
        if not hasattr(speculator, "drafter"):
            speculator.drafter = self._drafter(self.block_tables.block_sizes[group])
        attention: Any = speculator.model.attention
        use_caches(speculator.drafter, [layer.kv_cache for layer in attention])

    def _drafter(self, page: int) -> Any:
        model = self.speculator.model
        output: Any = model.lm_head.weight
        return head_on_device(
            model.head,
            model.embedding,
            output[: model.head.config.vocab_size],
            ops=self.step.ops,
            layer_ops=layer_ops_for(self.device).ops,
            places=self.max_model_len,
            depth=self.step.depth,
            requests=self.max_num_reqs,
            page=page,
        )

    def add_requests(self, scheduler_output: Any) -> None:
        """As vLLM's; the head begins too."""
        super().add_requests(scheduler_output)
        for request in scheduler_output.scheduled_new_reqs:
            slot = self.req_states.req_id_to_index[request.req_id]
            _, temperature = self.step.choices[request.req_id]
            self.speculator.begin(slot, temperature)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """As vLLM's; each request's as many as its tree has."""
        drafts = super().take_draft_token_ids()
        if drafts is None:
            return None
        planned = self.step.planned
        cut = [
            tokens[: planned.get(request, 0)]
            for request, tokens in zip(drafts.req_ids, drafts.draft_token_ids, strict=True)
        ]
        return DraftTokenIds(drafts.req_ids, cut)
