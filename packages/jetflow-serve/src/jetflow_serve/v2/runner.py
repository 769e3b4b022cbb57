"""vLLM's CPU model runner V2, with trees."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model_loader
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.cpu.model_runner import CPUModelRunner

from jetflow_serve.counters import Counters
from jetflow_serve.drafts import Drafts
from jetflow_serve.engine.settings import read_settings
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

    @property
    def drafts(self) -> Drafts:
        """The drafts of all running requests."""
        return self._shared.drafts

    @property
    def counters(self) -> Counters:
        """What trees did so far."""
        return self._shared.drafts.counters

    def load_model(
        self,
        load_dummy_weights: bool = False,
        *args: Any,
        model: nn.Module | None = None,
        **options: Any,
    ) -> None:
        """As vLLM's; the target says which class keeps its state, and that is ours."""
        if model is None:
            loader = get_model_loader(self.vllm_config.load_config)
            model = loader.load_model(
                vllm_config=self.vllm_config, model_config=self.vllm_config.model_config
            )
        shared = self._shared

        class State(TreeModelState):
            """The state of this runner's model."""

            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                self.shared = shared

        model.get_model_state_cls = lambda: State
        super().load_model(load_dummy_weights, *args, model=model, **options)

    def initialize_kv_cache(self, *args: Any, **options: Any) -> None:
        """As vLLM's; then the target's caches are known."""
        super().initialize_kv_cache(*args, **options)
        layers = self.vllm_config.compilation_config.static_forward_context
        self.model_state.caches = [
            layers[name].kv_cache
            for group in self.kv_cache_config.kv_cache_groups
            for name in group.layer_names
            if name not in self.speculator.draft_attn_layer_names
        ]

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """The new trees, each as long as it is."""
        handler = self.draft_tokens_handler
        trees = self._shared.drafts.trees
        drafts = [
            trees[request].tokens[1:].tolist() if request in trees else []
            for request in handler.req_ids
        ]
        return DraftTokenIds(handler.req_ids, drafts)
