"""The table of vLLM's hooks that trees need, by version.

It was read off the wheels of 0.32.0 and 0.33.0, what a GPU needs off that of 0.32.0. Nothing of
vLLM is replaced: each entry is a public extension point, or a method that a subclass of ours
overrides. For those the parameter names are part of the table, because a changed signature breaks
a subclass as surely as a missing method does.
"""

from __future__ import annotations

from jetflow_serve.hook import Hook
from jetflow_serve.hooks_cuda import CUDA
from jetflow_serve.hooks_v1 import RUNNER_V1
from jetflow_serve.hooks_v2 import RUNNER_V2

_EVERY_PROCESS = (
    Hook("vllm.plugins", "DEFAULT_PLUGINS_GROUP", "run our registrations in every process"),
    Hook(
        "vllm.model_executor.models.registry",
        "_ModelRegistry.register_model",
        "register the draft class",
        ("model_arch", "model_cls"),
    ),
    Hook(
        "vllm.v1.attention.backends.registry",
        "register_backend",
        "attention with a tree mask",
        ("backend", "class_path", "is_mamba"),
    ),
    Hook(
        "vllm.v1.attention.backends.registry",
        "AttentionBackendEnum.CPU_ATTN",
        "the only backend a CPU takes, overridden there",
    ),
    Hook("vllm.config.parallel", "ParallelConfig.worker_cls", "our worker builds the runner"),
    Hook("vllm.config.vllm", "VllmConfig.additional_config", "tree options travel in it"),
    Hook(
        "vllm.config.speculative",
        "SpeculativeConfig.num_speculative_tokens_per_batch_size",
        "draft width by batch size",
    ),
)

_DRAFT_MODEL = (
    Hook(
        "vllm.model_executor.layers.attention.attention",
        "Attention",
        "the head's layers read and write the paged cache",
    ),
    Hook(
        "vllm.model_executor.layers.logits_processor",
        "LogitsProcessor",
        "the target's output matrix gives the head's logits",
    ),
)

_METRICS = (
    Hook("vllm.plugins", "STAT_LOGGER_PLUGINS_GROUP", "our metrics in the server's process"),
    Hook(
        "vllm.v1.metrics.loggers",
        "StatLoggerBase.record",
        "told of every step",
        ("scheduler_stats", "iteration_stats", "mm_cache_stats", "engine_idx"),
    ),
    Hook("vllm.v1.metrics.loggers", "AggregateStatLoggerBase", "one logger for all engines"),
    Hook("vllm.v1.metrics.loggers", "PrometheusStatLogger._counter_cls", "counters like vLLM's"),
    Hook("vllm.v1.metrics.loggers", "PrometheusStatLogger._gauge_cls", "gauges like vLLM's"),
    Hook("vllm.v1.metrics.loggers", "PrometheusStatLogger._histogram_cls", "histograms like these"),
    Hook("vllm.config.vllm", "VllmConfig.instance_id", "names an engine in all its processes"),
)

_WORKER = "vllm.v1.worker.gpu_worker"
_OUTPUT = "vllm.v1.core.sched.output"

_STEP_COSTS = (
    Hook("vllm.v1.worker.cpu_worker", "CPUWorker.compile_or_warm_up_model", "when steps are timed"),
    Hook(_WORKER, "Worker.execute_model", "runs a step", ("scheduler_output",)),
    Hook(_WORKER, "Worker.sample_tokens", "ends a step", ("grammar_output",)),
    Hook(_WORKER, "Worker.take_draft_token_ids", "the drafts of a step"),
    Hook(_OUTPUT, "SchedulerOutput.make_empty", "made-up steps"),
    Hook(_OUTPUT, "NewRequestData.num_computed_tokens", "made-up requests"),
    Hook(_OUTPUT, "CachedRequestData.num_output_tokens", "made-up requests that go on"),
)

_SCHEDULER = "vllm.v1.core.sched.scheduler"

_AUDIT = (
    Hook("vllm.config.scheduler", "SchedulerConfig.scheduler_cls", "our scheduler audits"),
    Hook(
        _SCHEDULER,
        "Scheduler.update_from_output",
        "who has ended, and what audits wrote",
        ("scheduler_output", "model_runner_output"),
    ),
    Hook(
        _SCHEDULER,
        "Scheduler.finish_requests",
        "who was ended by the server",
        ("request_ids", "finished_status"),
    ),
    Hook(_SCHEDULER, "Scheduler.add_request", "a request is decoded again", ("request",)),
    Hook("vllm.v1.request", "Request", "the same request without drafts"),
    Hook(
        "vllm.sampling_params",
        "SamplingParams.skip_reading_prefix_cache",
        "audits compute their prompt anew",
    ),
)

_SHARED = (
    *_EVERY_PROCESS,
    *_DRAFT_MODEL,
    *_METRICS,
    *_STEP_COSTS,
    *_AUDIT,
    *RUNNER_V1,
    *RUNNER_V2,
    *CUDA,
)

HOOKS: dict[str, tuple[Hook, ...]] = {"0.32": _SHARED, "0.33": _SHARED}
"""The hooks of each vLLM release line, by its first two numbers."""
