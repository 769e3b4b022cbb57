"""vLLM's CPU model runner, with trees: where a step of it differs from a step of vLLM's own.

Positions follow depths, attention follows ancestors, the walk replaces the rejection test, the
accepted rows of the cache are moved behind the context, and the drafter gets them in the order of
the text. Everything else, the scheduler's counting above all, is vLLM's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jetflow_tree import Accepted, Tree
from torch import Tensor
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.sampling_params import SamplingParams
from vllm.v1.worker.cpu_model_runner import CPUModelRunner

from jetflow_serve import stage
from jetflow_serve.context_rows import context_rows
from jetflow_serve.counters import Counters
from jetflow_serve.cpu_cache import move_rows
from jetflow_serve.drafts import Drafts, Picked
from jetflow_serve.drawing import Seeds
from jetflow_serve.engine.drafting import features_in_order
from jetflow_serve.engine.requests import choice_of
from jetflow_serve.engine.settings import read_settings
from jetflow_serve.tree_rows import tree_rows
from jetflow_serve.v1.outputs import sampler_output
from jetflow_serve.v1.proposer import TreeProposer
from jetflow_serve.v1.sampler import Asked, walk_all

# Under the name of vLLM's own loggers, or its settings would not reach it.
logger = init_logger("vllm.jetflow")


@dataclass(slots=True)
class Step:
    """What is known of one step between its preparation and its drafts."""

    scheduled: list[int]
    """Rows of each request of the batch."""
    contexts: list[int]
    """Cached tokens of each before the step."""
    staged: list[stage.Staged | None]
    kept: list[Accepted]
    """Empty until tokens are picked."""


class TreeModelRunner(CPUModelRunner):
    """A CPU model runner whose drafts are trees."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        super().__init__(vllm_config, device)
        self._settings = read_settings(vllm_config)
        for warning in self._settings.warnings:
            logger.warning("%s", warning)
        self.drafter = TreeProposer(vllm_config, device, self)
        settings = self._settings
        self.drafts = Drafts(settings.head, settings.options, self.max_model_len)
        self._seeds = Seeds(vllm_config.model_config.seed or 0)
        self._step: Step | None = None

    @property
    def counters(self) -> Counters:
        """What trees did so far."""
        return self.drafts.counters

    def _update_states(self, scheduler_output: Any) -> Any:
        for request in scheduler_output.finished_req_ids:
            self.drafts.forget(request)
            self._seeds.forget(request)
        return super()._update_states(scheduler_output)

    def _prepare_inputs(
        self, scheduler_output: Any, num_scheduled_tokens: np.ndarray
    ) -> tuple[Any, ...]:
        prepared: tuple[Any, ...] = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        scheduled = num_scheduled_tokens.tolist()
        contexts = self.input_batch.num_computed_tokens_cpu[: len(scheduled)].tolist()
        staged = stage.stage(
            self.input_batch.req_ids,
            scheduled,
            contexts,
            scheduler_output.scheduled_spec_decode_tokens,
            self.drafts.trees,
        )
        # Only now: the slots of the rows were found by their places in a chain.
        for entry in staged:
            if entry is not None:
                self.positions[entry.rows] = torch.from_numpy(entry.positions())
        self._step = Step(scheduled, contexts, staged, [])
        return prepared

    def _build_attention_metadata(self, *args: Any, **options: Any) -> tuple[Any, Any]:
        metadata, common = super()._build_attention_metadata(*args, **options)
        if self._step is not None and isinstance(metadata, dict):
            trees = tree_rows(self._step.staged)
            for layer in metadata.values():
                layer.trees = trees
        return metadata, common

    def _sample(self, logits: Tensor | None, spec_decode_metadata: Any) -> Any:
        step = self._step
        assert step is not None and logits is not None
        firsts, requests = self._asked(step, spec_decode_metadata.num_draft_tokens)
        metadata = self.input_batch.sampling_metadata
        step.kept, processed = walk_all(self.sampler, logits, requests, metadata)
        self._move(step)
        return sampler_output(
            self.sampler,
            step.kept,
            firsts,
            logits,
            processed,
            metadata.max_num_logprobs,
            metadata.logprob_token_ids or {},
        )

    def _asked(self, step: Step, drafted: Sequence[int]) -> tuple[list[int], list[Asked]]:
        firsts, requests = [], []
        first = 0
        for index, request in enumerate(self.input_batch.req_ids):
            entry = step.staged[index]
            last = step.contexts[index] + step.scheduled[index] - 1
            requests.append(
                Asked(
                    # The root's token is not looked at.
                    tree=Tree.root_only(0) if entry is None else entry.tree,
                    first=first,
                    place=last if entry is None else entry.context,
                    seed=self._seeds.of(request, self._params(request).seed),
                )
            )
            firsts.append(first)
            first += 1 + drafted[index]
        return firsts, requests

    def _move(self, step: Step) -> None:
        """Copies accepted rows of the target's cache to where the text has them."""
        pairs: list[tuple[int, int]] = []
        for entry, accepted in zip(step.staged, step.kept, strict=True):
            if entry is None:
                continue
            own = stage.moves(entry, accepted)
            self.drafts.verified(entry, accepted, len(own))
            pairs += own
        if pairs:
            slots = self._slots()
            sources, targets = (slots[list(rows)] for rows in zip(*pairs, strict=True))
            for cache in self._target_caches():
                move_rows(cache, sources, targets)

    def _slots(self) -> Tensor:
        """int64 ``[T]`` cache slots of the batch's rows, by their places in a chain."""
        slots: Tensor = self.input_batch.block_table[0].slot_mapping.gpu
        return slots

    def _target_caches(self) -> list[Tensor]:
        layers = self.compilation_config.static_forward_context
        drafts = self.drafter._draft_attn_layer_names
        return [
            layers[name].kv_cache
            for group in self.kv_cache_config.kv_cache_groups
            for name in group.layer_names
            if name not in drafts
        ]

    def _input_fits_in_drafter(self, common_attn_metadata: Any) -> bool:
        # vLLM stops drafting for all when one request is near the end; we cut each request's own.
        return common_attn_metadata is not None

    def propose_draft_token_ids(
        self,
        scheduler_output: Any,
        sampled_token_ids: Any,
        sampling_metadata: Any,
        hidden_states: Any,
        sample_hidden_states: Any,
        aux_hidden_states: Any,
        spec_decode_metadata: Any,
        common_attn_metadata: Any,
        slot_mappings: Any,
    ) -> list[list[int]]:
        """The nodes of each request's next tree, parents first."""
        step = self._step
        assert step is not None
        self._step = None
        rows = context_rows(step.scheduled, step.contexts, step.staged, step.kept)
        total = scheduler_output.total_num_scheduled_tokens
        taps = self._settings.head.target_layer_ids
        features = features_in_order(aux_hidden_states, taps, total)
        last = self.drafter.observe(features, rows, self._slots())
        nodes = min(scheduler_output.num_spec_tokens_to_schedule, self.num_spec_tokens)
        asks = self.drafts.plan(self._picked(step), nodes)
        candidates = self.drafter.draft(asks, last, common_attn_metadata)
        drafts: list[list[int]] = [[] for _ in step.scheduled]
        for ask, tokens in zip(asks, self.drafts.grow(asks, candidates), strict=True):
            drafts[ask.index] = tokens
        return drafts

    def _picked(self, step: Step) -> list[Picked]:
        found = []
        for index, request in enumerate(self.input_batch.req_ids):
            self.drafts.forget(request)
            if self.discard_request_mask.np[index]:
                # Its prompt is not finished: no token of it was picked.
                continue
            kept = step.kept[index]
            place = step.contexts[index] + step.scheduled[index]
            if (entry := step.staged[index]) is not None:
                place = entry.context + 1 + len(kept.nodes)
            params = self._params(request)
            choice, temperature = choice_of(params), params.temperature
            found.append(Picked(request, index, kept.correction, place, choice, temperature))
        return found

    def _params(self, request: str) -> SamplingParams:
        params = self.requests[request].sampling_params
        assert params is not None
        return params
