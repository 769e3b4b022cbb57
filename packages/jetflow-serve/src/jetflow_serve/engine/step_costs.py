"""What steps of this engine cost: made-up requests are run through the worker before anybody asks.

A step is all that the worker does: the target's pass over all rows, the walk, the head and the
trees. What vLLM does around it costs every step the same, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from statistics import median
from time import perf_counter
from typing import Any

import torch
from jetflow_core.reports.provenance import provenance
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from jetflow_serve.auto.sharing import EvenShares
from jetflow_serve.engine.settings import Settings

RUNS, RUNS_OF_SLOW, SLOW = 5, 2, 0.1
"""Timed steps of a size, and of one that takes more than so many seconds."""
_PACKAGES = ("jetflow-tree", "jetflow-core", "jetflow-kernels", "jetflow-serve", "torch")


@dataclass(frozen=True, slots=True, eq=False)
class StepTimer:
    """Seconds of a step with made-up requests.

    They may share cache blocks, since nobody reads what they write.
    """

    worker: Any
    """The worker, loaded, with its cache, and without requests."""
    block: int
    """Rows of a cache block."""
    blocks: int
    """Blocks of the cache."""
    groups: int
    """Groups of layers whose blocks are counted apart."""

    def __call__(self, requests: int, total: int, tree_rows: int, context: int) -> float:
        """The median of some steps of so many requests whose trees have ``total`` rows."""
        drafts = self.worker.model_runner.drafts
        drafts.sharing = EvenShares(tree_rows, total)
        batch = _Batch([f"jetflow-cost-{number}" for number in range(requests)])
        try:
            self._step(self._first(batch, context), batch)
            # The first with drafts finds nothing warm.
            self._once(batch)
            runs = [self._once(batch)]
            while len(runs) < (RUNS if runs[0] < SLOW else RUNS_OF_SLOW):
                runs.append(self._once(batch))
        finally:
            last = SchedulerOutput.make_empty()
            last.finished_req_ids = set(batch.names)
            self.worker.execute_model(last)
            drafts.sharing = None
        return median(runs)

    def _once(self, batch: _Batch) -> float:
        output = self._next(batch)
        start = perf_counter()
        self._step(output, batch)
        return perf_counter() - start

    def _step(self, output: SchedulerOutput, batch: _Batch) -> None:
        self.worker.execute_model(output)
        result = self.worker.sample_tokens(None)
        # Where a device runs ahead, the step has ended only when its tokens are here.
        result = result.get_output() if hasattr(result, "get_output") else result
        drafts = self.worker.take_draft_token_ids()
        batch.drafts = dict(zip(drafts.req_ids, drafts.draft_token_ids, strict=True))
        for name in batch.names:
            count = len(result.sampled_token_ids[result.req_id_to_index[name]])
            batch.computed[name] += count
            batch.written[name] += count

    def _first(self, batch: _Batch, context: int) -> SchedulerOutput:
        """All requests are new and have all but one row of their prompt in the cache."""
        output = self._scheduled(dict.fromkeys(batch.names, 1))
        reach = -(-(context + self._room()) // self.block)
        params = SamplingParams(temperature=0.0, max_tokens=1 << 20, ignore_eos=True, seed=0)
        for number, name in enumerate(batch.names):
            # Block 0 is vLLM's own; those of a small cache are used by several.
            blocks = [1 + (number * reach + n) % (self.blocks - 1) for n in range(reach)]
            output.scheduled_new_reqs.append(
                NewRequestData(
                    req_id=name,
                    prompt_token_ids=[0] * (context + 1),
                    mm_features=[],
                    sampling_params=params,
                    pooling_params=None,
                    block_ids=tuple(list(blocks) for _ in range(self.groups)),
                    num_computed_tokens=context,
                    lora_request=None,
                    prefill_token_ids=[0] * (context + 1),
                )
            )
            batch.computed[name], batch.written[name] = context, 0
        return output

    def _next(self, batch: _Batch) -> SchedulerOutput:
        """The next step: every request's root and its newest drafts."""
        drafts = {name: tokens for name, tokens in batch.drafts.items() if tokens}
        rows = {name: 1 + len(drafts.get(name, ())) for name in batch.names}
        output = self._scheduled(rows)
        output.scheduled_spec_decode_tokens = drafts
        output.scheduled_cached_reqs = CachedRequestData(
            req_ids=list(batch.names),
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[None] * len(batch.names),
            num_computed_tokens=[batch.computed[name] for name in batch.names],
            num_output_tokens=[batch.written[name] for name in batch.names],
        )
        return output

    def _scheduled(self, rows: dict[str, int]) -> SchedulerOutput:
        output = SchedulerOutput.make_empty()
        output.num_scheduled_tokens = rows
        output.total_num_scheduled_tokens = sum(rows.values())
        output.num_spec_tokens_to_schedule = self._nodes()
        return output

    def _nodes(self) -> int:
        nodes: int = self.worker.vllm_config.speculative_config.num_speculative_tokens
        return nodes

    def _room(self) -> int:
        """Rows that one request may come to need behind its context."""
        return room_of(self._nodes())


@dataclass(slots=True)
class _Batch:
    """The made-up requests between two steps."""

    names: list[str]
    computed: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    drafts: dict[str, list[int]] = field(default_factory=dict)


def room_of(nodes: int) -> int:
    """Rows that a made-up request with trees of so many nodes may come to need."""
    return (RUNS + 2) * (nodes + 1) + 1


def cost_key(config: VllmConfig, settings: Settings, version_2: bool) -> Mapping[str, Any]:
    """All that the cost of a step depends on, as plain JSON."""
    device = config.device_config.device_type
    found = provenance(str(device))
    target = config.model_config.hf_text_config.to_json_string(use_diff=False)
    scheduler = config.scheduler_config
    return {
        "device": found["device_name"],
        "cpu": found["cpu"],
        "threads": torch.get_num_threads() if device == "cpu" else None,
        "versions": {name: found["packages"].get(name) for name in _PACKAGES},
        "vllm": _vllm_version(),
        "runner": 2 if version_2 else 1,
        "eager": bool(config.model_config.enforce_eager),
        "target": sha256(target.encode()).hexdigest(),
        "dtype": str(config.model_config.dtype),
        "length": config.model_config.max_model_len,
        "block": config.cache_config.block_size,
        "batch": [scheduler.max_num_seqs, scheduler.max_num_batched_tokens],
        "head": {name: str(value) for name, value in asdict(settings.head).items()},
        "mode": settings.options.mode,
        "depth": settings.depth,
        "max_children": settings.options.max_children,
    }


def _vllm_version() -> str:
    import vllm

    return str(vllm.__version__)
