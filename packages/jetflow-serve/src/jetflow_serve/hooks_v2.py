"""Hooks of Model Runner V2: what our runner, speculator, sampler and model state build on."""

from __future__ import annotations

from jetflow_serve.hook import Hook

_GPU = "vllm.v1.worker.gpu"
_STATES = f"{_GPU}.model_states"

_RUNNER = (
    Hook("vllm.v1.worker.cpu.model_runner", "CPUModelRunner", "the runner that is extended"),
    Hook(
        f"{_GPU}.model_runner",
        "GPUModelRunner.initialize_kv_cache",
        "the target's caches",
        ("kv_cache_config", "is_profiling", "kv_cache_allocation_context"),
    ),
    Hook(
        f"{_GPU}.model_runner",
        "GPUModelRunner.take_draft_token_ids",
        "each request's tree is as long as it is",
    ),
)

_STATE = (
    Hook(
        _STATES,
        "resolve_model_state_cls",
        "asks the target for get_model_state_cls, our way in",
        ("vllm_config", "model"),
    ),
    Hook(f"{_STATES}.default", "DefaultModelState", "the class that is extended"),
    Hook(
        f"{_STATES}.interface",
        "ModelState.add_request",
        "what a request asks for",
        ("req_index", "new_req_data"),
    ),
    Hook(
        f"{_STATES}.interface", "ModelState.remove_request", "its trees are forgotten", ("req_id",)
    ),
    Hook(
        f"{_STATES}.interface",
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
        f"{_STATES}.interface",
        "ModelState.custom_sampler",
        "a rejection sampler that walks the tree",
        ("sampler",),
    ),
    Hook(
        f"{_STATES}.interface",
        "ModelState.postprocess_state",
        "move the accepted rows before the next draft",
        ("idx_mapping", "num_sampled", "num_computed_tokens"),
    ),
)

_SAMPLER = (
    Hook(
        f"{_GPU}.sample.sampler",
        "Sampler.apply_sampling_params",
        "what a request asks for, at every row",
        (
            "logits",
            "expanded_idx_mapping",
            "idx_mapping",
            "idx_mapping_np",
            "pos",
            "input_ids",
            "expanded_local_pos",
            "seq_lens_upper_bound_np",
            "skip_top_k_top_p",
        ),
    ),
    # Its later parameters have defaults, and ours are given by name.
    Hook(f"{_GPU}.sample.gumbel", "gumbel_sample", "vLLM's own noise of a seed and a place"),
    Hook(
        f"{_GPU}.spec_decode.rejection_sampler",
        "RejectionSampler",
        "the class that is extended",
    ),
    Hook(
        f"{_GPU}.sample.sampler",
        "Sampler.get_logprobs_dims",
        "which log-probabilities are wanted",
        ("idx_mapping_np", "include_token_ids"),
    ),
    Hook(
        f"{_GPU}.sample.logprob",
        "compute_topk_scores",
        "log-probabilities of the accepted path",
        (
            "logits",
            "num_logprobs",
            "sampled_token_ids",
            "cu_num_logits",
            "logprob_token_ids_state",
            "expanded_idx_mapping",
            "max_per_req_token_ids",
            "logits_mode",
        ),
    ),
    Hook(
        f"{_GPU}.input_batch",
        "get_num_sampled_and_rejected",
        "prompts that are not finished emit nothing",
        ("num_sampled", "seq_lens", "cu_num_logits", "idx_mapping", "prefill_len"),
    ),
)

_DRAFTER = (
    Hook(
        f"{_GPU}.spec_decode.dflash.speculator",
        "DFlashSpeculator.load_draft_model",
        "the target is given its model state before anything asks",
        ("target_model", "target_attn_layer_names"),
    ),
    Hook(f"{_GPU}.attn_utils", "build_attn_metadata", "metadata of the head's layers"),
    Hook(
        f"{_GPU}.spec_decode.dflash.speculator",
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

RUNNER_V2 = _RUNNER + _STATE + _SAMPLER + _DRAFTER
"""Everything that the adapter in ``jetflow_serve.v2`` relies on."""
