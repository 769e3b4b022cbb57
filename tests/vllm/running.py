"""Engines in this process, plain and with trees, and what they answer."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

WORKER = "jetflow_serve.engine.worker.TreeWorker"
Request = tuple[list[int], SamplingParams]


@contextmanager
def engine(target: Path, **options: Any) -> Iterator[LLM]:
    """An engine on the target, gone afterwards."""
    # vLLM collects garbage a dozen times on its way; what is imported need not be looked at.
    gc.freeze()
    llm = LLM(
        **{
            "model": str(target),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 2048,
            "block_size": 32,
            "seed": 0,
            "kv_cache_memory_bytes": 16 << 20,
            "enable_prefix_caching": False,
            **options,
        }
    )
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()


@contextmanager
def tree_engine(
    target: Path, head: Path, nodes: int, *, tree: dict[str, Any] | None = None, **options: Any
) -> Iterator[LLM]:
    """An engine that drafts ``nodes`` nodes a request with the head."""
    speculative = {
        "method": "dflash",
        "model": str(head),
        "num_speculative_tokens": nodes,
        **options.pop("speculative", {}),
    }
    with engine(
        target,
        worker_cls=WORKER,
        speculative_config=speculative,
        additional_config={"jetflow": tree or {}},
        **options,
    ) as llm:
        yield llm


def runner_of(llm: LLM) -> Any:
    """The model runner behind an engine of this process."""
    core = llm.llm_engine.engine_core.engine_core
    return core.model_executor.driver_worker.worker.model_runner


def answers(llm: LLM, requests: Sequence[Request]) -> list[Any]:
    """The completion of each request."""
    prompts = [{"prompt_token_ids": prompt} for prompt, _ in requests]
    outputs = llm.generate(prompts, [params for _, params in requests], use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def tokens(llm: LLM, requests: Sequence[Request]) -> list[list[int]]:
    """The tokens of each completion."""
    return [list(answer.token_ids) for answer in answers(llm, requests)]


def metric(llm: LLM, name: str) -> float:
    """A counter of vLLM's, of an engine with ``disable_log_stats=False``."""
    return sum(found.value for found in llm.get_metrics() if found.name == name)
