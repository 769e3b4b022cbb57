"""What is refused before anything loads, one line each: pure functions of plain values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jetflow_core.head.config import HeadConfig

from jetflow_serve.options import AUTO, ServeOptions

WORKER = "jetflow_serve.engine.worker.TreeWorker"

SCHEDULER = "jetflow_serve.engine.audit_scheduler.AuditScheduler"


class ServeRefused(ValueError):
    """vLLM is configured in a way that this package does not run; the message names each fault."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """Of a vLLM configuration what decides whether trees can be served."""

    worker_cls: str
    scheduler_cls: str | None
    """None: vLLM's own."""
    target_layers: int
    target_hidden_size: int
    target_vocab_size: int
    target_is_hybrid: bool
    """The target has layers that keep a state instead of keys and values."""
    target_windows: bool
    """Some of the target's layers see a window of the context only."""
    num_speculative_tokens: int
    max_num_seqs: int
    max_num_batched_tokens: int
    pipeline_parallel: int
    tensor_parallel: int
    data_parallel: int
    lora: bool
    cache_dtype: str
    async_scheduling: bool
    width_by_load: bool


def check_head_keys(raw: Mapping[str, Any], file: str) -> None:
    """Refuses a head that says it is causal only in words that vLLM does not read.

    Raises:
        ServeRefused: ``causal_head`` without ``causal``.
    """
    section = raw.get("dflash_config")
    keys = section if isinstance(section, Mapping) else {}
    if "causal_head" in keys and "causal" not in keys:
        raise ServeRefused(
            f"{file}: dflash_config says causal_head but not causal, so vLLM would run this head "
            f'bidirectionally; add "causal": {str(bool(keys["causal_head"])).lower()} beside it'
        )


def check_engine(engine: Engine, head: HeadConfig, options: ServeOptions) -> list[str]:
    """Refuses what cannot be served, and returns warnings about what is served badly.

    Args:
        engine: of vLLM's configuration what matters here.
        head: the head's description.
        options: the user's options.

    Raises:
        ServeRefused: naming every fault.
    """
    faults = [
        *mismatches(
            head,
            layers=engine.target_layers,
            hidden_size=engine.target_hidden_size,
            vocab_size=engine.target_vocab_size,
        ),
        *_not_served(engine),
        *_unaudited(engine, options),
        *_sizes(engine, head, options),
    ]
    if faults:
        raise ServeRefused("; ".join(faults))
    return list(_warnings(engine))


def mismatches(
    head: HeadConfig, *, layers: int, hidden_size: int, vocab_size: int
) -> Iterator[str]:
    """Why a head does not belong to a target of these sizes, a line each."""
    beyond = [layer for layer in head.target_layer_ids if layer >= layers]
    if beyond:
        yield (
            f"the head reads layer {', '.join(map(str, beyond))} of its target, "
            f"which has {layers} layers"
        )
    if head.vocab_size != vocab_size:
        yield f"the head's vocabulary has {head.vocab_size} tokens, the target's {vocab_size}"
    if head.hidden_size != hidden_size:
        yield f"the head is {head.hidden_size} wide, the target {hidden_size}"


def _not_served(engine: Engine) -> Iterator[str]:
    if engine.worker_cls != WORKER:
        yield f"the worker is {engine.worker_cls}: start vLLM with --worker-cls {WORKER}"
    for present, what in (
        (engine.pipeline_parallel > 1, "pipeline parallel"),
        (engine.tensor_parallel > 1, "tensor parallel"),
        (engine.lora, "LoRA"),
        (engine.target_is_hybrid, "a target whose layers keep a state (hybrid or linear)"),
        (engine.target_windows, "a target whose layers see a sliding window"),
        (engine.cache_dtype != "auto", f"a KV cache of type {engine.cache_dtype}"),
        (engine.async_scheduling, "asynchronous scheduling (start with --no-async-scheduling)"),
        (engine.data_parallel > 1 and engine.width_by_load, "data parallel with width by load"),
    ):
        if present:
            yield f"not served by this version: {what}"


def _unaudited(engine: Engine, options: ServeOptions) -> Iterator[str]:
    if options.audit and engine.scheduler_cls != SCHEDULER:
        yield (
            f"audit {options.audit} needs our scheduler: start vLLM with "
            f"--scheduler-cls {SCHEDULER}"
        )


def _sizes(engine: Engine, head: HeadConfig, options: ServeOptions) -> Iterator[str]:
    nodes = engine.num_speculative_tokens
    if options.budget == AUTO:
        if engine.width_by_load:
            yield (
                "budget auto and num_speculative_tokens_per_batch_size both choose by load: "
                "leave one out"
            )
    elif isinstance(options.budget, int) and options.budget != nodes + 1:
        yield (
            f"budget {options.budget} counts the root, so num_speculative_tokens must be "
            f"{options.budget - 1}; it is {nodes}"
        )
    if options.depth is not None and options.depth > head.max_depth:
        yield f"depth {options.depth} is more than this head drafts: 1..{head.max_depth}"
    if options.max_children is not None and options.max_children > head.candidates:
        yield (
            f"max_children {options.max_children} is more than the head's "
            f"{head.candidates} candidates"
        )


def _warnings(engine: Engine) -> Iterator[str]:
    rows = engine.max_num_seqs * (1 + engine.num_speculative_tokens)
    if rows > engine.max_num_batched_tokens:
        yield (
            f"{engine.max_num_seqs} requests of {1 + engine.num_speculative_tokens} rows are "
            f"{rows}, max_num_batched_tokens is {engine.max_num_batched_tokens}: under full load "
            "trees are cut short"
        )
