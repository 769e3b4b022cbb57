"""The table of vLLM's hooks that trees need, by version.

It was read off the wheels of 0.32.0 and 0.33.0. Nothing of vLLM is replaced: each entry is a
public extension point, or a method that a subclass of ours overrides. For those the parameter
names are part of the table, because a changed signature breaks a subclass as surely as a missing
method does.
"""

from __future__ import annotations

from jetflow_serve.hook import Hook
from jetflow_serve.hooks_v1 import RUNNER_V1

_EVERY_PROCESS = (
    Hook("vllm.plugins", "DEFAULT_PLUGINS_GROUP", "run our registrations in every process"),
    Hook("vllm.plugins", "STAT_LOGGER_PLUGINS_GROUP", "our metrics in the API process"),
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
        "AttentionBackendEnum.CUSTOM",
        "the name of that backend on a GPU",
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
    Hook(
        "vllm.triton_utils.dispatcher",
        "register_kernels",
        "swap a kernel by name",
        ("overrides",),
    ),
)

_DRAFT_MODEL = (
    Hook(
        "vllm.model_executor.models.qwen3_dflash",
        "DFlashQwen3ForCausalLM.combine_hidden_states",
        "what our draft model has too: receives the target's tapped features each step",
        ("hidden_states",),
    ),
    Hook(
        "vllm.model_executor.models.qwen3_dflash",
        "DFlashQwen3ForCausalLM.precompute_and_store_context_kv",
        "what our draft model has too: projects committed rows into the draft's cache",
        ("context_states", "context_positions", "context_slot_mapping"),
    ),
)

_MODEL_STATE = "vllm.v1.worker.gpu.model_states.interface"
_RUNNER_V2 = (
    Hook(
        "vllm.v1.worker.gpu.model_states",
        "resolve_model_state_cls",
        "asks the target for get_model_state_cls, our way in",
        ("vllm_config", "model"),
    ),
    Hook(
        _MODEL_STATE,
        "ModelState.preprocess_state",
        "stage the trees of the batch",
        ("input_batch", "block_tables", "kv_cache_config", "num_computed_tokens"),
    ),
    Hook(
        _MODEL_STATE,
        "ModelState.prepare_inputs",
        "inputs beside the tokens",
        ("input_batch", "req_states"),
    ),
    Hook(
        _MODEL_STATE,
        "ModelState.prepare_attn",
        "positions are the context plus the depth; the mask",
        (
            "input_batch",
            "cudagraph_mode",
            "block_tables",
            "slot_mappings",
            "attn_groups",
            "kv_cache_config",
            "for_capture",
            "ubatch_idx",
        ),
    ),
    Hook(
        _MODEL_STATE,
        "ModelState.custom_sampler",
        "a rejection sampler that walks the tree",
        ("sampler",),
    ),
    Hook(
        _MODEL_STATE,
        "ModelState.postprocess_state",
        "move the accepted rows before the next draft",
        ("idx_mapping", "num_sampled", "num_computed_tokens"),
    ),
    Hook(
        "vllm.v1.worker.gpu.spec_decode.rejection_sampler",
        "RejectionSampler._verify",
        "the walk along the tree",
        (
            "logits",
            "draft_logits",
            "draft_sampled",
            "pos",
            "cu_num_logits",
            "idx_mapping",
            "idx_mapping_np",
            "expanded_idx_mapping",
            "expanded_local_pos",
            "seq_lens_upper_bound_np",
            "verify_draft_sampled",
        ),
    ),
    Hook(
        "vllm.v1.worker.gpu.spec_decode.dflash.speculator",
        "DFlashSpeculator.propose",
        "draft a tree instead of a chain",
        (
            "input_batch",
            "attn_metadata",
            "slot_mappings",
            "last_hidden_states",
            "aux_hidden_states",
            "num_sampled",
            "num_rejected",
            "last_sampled",
            "next_prefill_tokens",
            "temperature",
            "seeds",
            "dp_sync_state",
            "dummy_run",
            "skip_attn_for_dummy_run",
            "mm_inputs",
            "is_profile",
            "num_speculative_tokens",
        ),
    ),
)

_SAMPLE_DRAFT = (
    "hidden_states",
    "sample_src_positions",
    "idx_mapping",
    "temperature",
    "seeds",
    "draft_step",
    "draft_logits",
    "spec_step_idx",
)


def _sample_draft(*more: str) -> Hook:
    return Hook(
        "vllm.v1.worker.gpu.spec_decode.speculator",
        "DraftModelSpeculator.sample_draft",
        "take candidates of every depth instead of one token",
        (*_SAMPLE_DRAFT, *more),
    )


_SHARED = _EVERY_PROCESS + _DRAFT_MODEL + RUNNER_V1 + _RUNNER_V2

HOOKS: dict[str, tuple[Hook, ...]] = {
    "0.32": (*_SHARED, _sample_draft()),
    "0.33": (*_SHARED, _sample_draft("num_steps")),
}
"""The hooks of each vLLM release line, by its first two numbers."""
