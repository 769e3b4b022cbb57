"""vLLM's model runner V2, with trees, on any device."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from jetflow_serve.counters import Counters
from jetflow_serve.drafts import Drafts
from jetflow_serve.engine.settings import read_settings
from jetflow_serve.refusals import ServeRefused
from jetflow_serve.v2.speculator import TreeSpeculator
from jetflow_serve.v2.state import TreeModelState
from jetflow_serve.v2.step import Shared

logger = init_logger("vllm.jetflow")


class TreeModelRunner(GPUModelRunner):
    """A model runner V2 whose drafts are trees."""

    state_cls: ClassVar[type[TreeModelState]] = TreeModelState
    """What keeps the target's state."""
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
        """``state_cls`` with what this runner's parts share: vLLM makes the object."""
        shared = self._shared
        base: Any = self.state_cls

        class State(base):
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
        names = [[name for name in each.layer_names if name not in drafts] for each in groups]
        ours = [index for index, own in enumerate(names) if own]
        if len(ours) != 1:
            raise ServeRefused(
                f"vLLM keeps the caches of the target's layers in {len(ours)} groups; trees are "
                "served where it is one"
            )
        layers = self.vllm_config.compilation_config.static_forward_context
        caches = [layers[name].kv_cache for name in names[ours[0]]]
        self.model_state.use_caches(ours[0], caches)

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """The new trees, each as long as it is."""
        handler = self.draft_tokens_handler
        trees = self._shared.drafts.trees
        drafts = [
            trees[request].tokens[1:].tolist() if request in trees else []
            for request in handler.req_ids
        ]
        return DraftTokenIds(handler.req_ids, drafts)
