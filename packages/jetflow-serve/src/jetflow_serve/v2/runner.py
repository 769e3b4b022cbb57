"""vLLM's CPU model runner V2, with trees."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.cpu.model_runner import CPUModelRunner

from jetflow_serve.counters import Counters
from jetflow_serve.drafts import Drafts
from jetflow_serve.engine.settings import read_settings
from jetflow_serve.v2.caches import one_group
from jetflow_serve.v2.speculator import TreeSpeculator
from jetflow_serve.v2.state import TreeModelState
from jetflow_serve.v2.step import Shared

logger = init_logger("vllm.jetflow")


class TreeModelRunner(CPUModelRunner):
    """A CPU model runner V2 whose drafts are trees."""

    speculator: TreeSpeculator
    model_state: TreeModelState

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        settings = read_settings(vllm_config)
        for warning in settings.warnings:
            logger.warning("%s", warning)
        super().__init__(vllm_config, device)
        self._shared = Shared(Drafts(settings.head, settings.options, self.max_model_len))
        self.speculator = TreeSpeculator(vllm_config, device)
        self.speculator.shared = self._shared
        self.speculator.target_state_cls = self._state_class()

    def _state_class(self) -> type[TreeModelState]:
        """The class of the target's state with what this runner's parts share; vLLM makes it."""
        shared = self._shared

        class State(TreeModelState):
            """The state of this runner's model."""

            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.shared = shared

        return State

    @property
    def drafts(self) -> Drafts:
        """The drafts of all running requests."""
        return self._shared.drafts

    @property
    def counters(self) -> Counters:
        """What trees did so far."""
        return self._shared.drafts.counters

    def initialize_kv_cache(self, *args: Any, **options: Any) -> None:
        """As vLLM's; then the target's caches are known.

        Raises:
            ServeRefused: the target's layers do not share their blocks.
        """
        super().initialize_kv_cache(*args, **options)
        drafts = self.speculator.draft_attn_layer_names
        groups = self.kv_cache_config.kv_cache_groups
        group, names = one_group(groups, lambda name: name not in drafts, "target")
        layers = self.vllm_config.compilation_config.static_forward_context
        self.model_state.use_caches(group, [layers[name].kv_cache for name in names])

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """The new trees, each as long as it is."""
        handler = self.draft_tokens_handler
        trees = self._shared.drafts.trees
        drafts = [
            trees[request].tokens[1:].tolist() if request in trees else []
            for request in handler.req_ids
        ]
        return DraftTokenIds(handler.req_ids, drafts)
