"""Hooks of Model Runner V1: what our runner, drafter, sampler and CPU attention build on."""

from __future__ import annotations

from jetflow_serve.hook import Hook

_RUNNER = "vllm.v1.worker.gpu_model_runner"
_CPU = "vllm.v1.attention.backends.cpu_attn"

_STEP = (
    Hook(
        _RUNNER,
        "GPUModelRunner._update_states",
        "forget the trees of finished requests",
        ("scheduler_output",),
    ),
    Hook(
        _RUNNER,
        "GPUModelRunner._prepare_inputs",
        "positions are the context plus the depth",
        ("scheduler_output", "num_scheduled_tokens"),
    ),
    Hook(
        _RUNNER,
        "GPUModelRunner._build_attention_metadata",
        "the trees of a step reach every layer's attention",
    ),
    Hook(
        _RUNNER,
        "GPUModelRunner._sample",
        "the walk along the tree, then the move of the accepted rows",
        ("logits", "spec_decode_metadata"),
    ),
    Hook(
        _RUNNER,
        "GPUModelRunner._input_fits_in_drafter",
        "each request has an end of its own",
        ("common_attn_metadata",),
    ),
    Hook(
        _RUNNER,
        "GPUModelRunner.propose_draft_token_ids",
        "features of the accepted path in chain order, then the next trees",
        (
            "scheduler_output",
            "sampled_token_ids",
            "sampling_metadata",
            "hidden_states",
            "sample_hidden_states",
            "aux_hidden_states",
            "spec_decode_metadata",
            "common_attn_metadata",
            "slot_mappings",
        ),
    ),
    Hook("vllm.v1.worker.cpu_model_runner", "CPUModelRunner", "the runner that is extended"),
    Hook("vllm.v1.worker.cpu_worker", "CPUWorker.init_device", "where our runner is built"),
)

_DRAFTER = (
    Hook("vllm.v1.spec_decode.dflash", "DFlashProposer", "the class that is extended"),
    Hook(
        "vllm.v1.spec_decode.llm_base_proposer",
        "SpecDecodeBaseProposer.build_per_group_and_layer_attn_metadata",
        "metadata of the head's layers",
        ("common_attn_metadata", "draft_index"),
    ),
)

_SAMPLER = (
    Hook(
        "vllm.v1.sample.sampler",
        "Sampler.apply_logits_processors",
        "what a request asks for, at its root row",
        ("logits", "sampling_metadata", "predict_bonus_token"),
    ),
    Hook(
        "vllm.v1.sample.sampler",
        "Sampler.gather_logprobs",
        "log-probabilities of the accepted path",
        ("logprobs", "num_logprobs", "token_ids"),
    ),
    Hook(
        "vllm.v1.sample.ops.bad_words",
        "apply_bad_words",
        "bad words at a drafted row",
        ("logits", "bad_words_token_ids", "past_tokens_ids"),
    ),
    Hook(
        "vllm.v1.sample.ops.penalties",
        "apply_all_penalties",
        "penalties at a drafted row",
        (
            "logits",
            "prompt_token_ids",
            "presence_penalties",
            "frequency_penalties",
            "repetition_penalties",
            "output_token_ids",
        ),
    ),
    # Later versions take more, by keyword.
    Hook("vllm.v1.sample.ops.topk_topp_sampler", "apply_top_k_top_p", "top-k and top-p"),
    Hook(
        "vllm.v1.sample.logits_processor.builtin",
        "MinTokensLogitsProcessor.min_toks",
        "least lengths at drafted rows",
    ),
)

_ATTENTION = (
    Hook("vllm.v1.attention.selector", "_cached_get_attn_backend", "it remembers old classes"),
    Hook(
        _CPU,
        "CPUAttentionBackendImpl.forward",
        "rows of trees are corrected",
        (
            "layer",
            "query",
            "key",
            "value",
            "kv_cache",
            "attn_metadata",
            "output",
            "output_scale",
            "output_block_scale",
        ),
    ),
    Hook(
        _CPU,
        "CPUAttentionBackendImpl.do_kv_cache_update",
        "the head's context goes into the cache",
        ("layer", "key", "value", "kv_cache", "slot_mapping"),
    ),
)

RUNNER_V1 = _STEP + _DRAFTER + _SAMPLER + _ATTENTION
"""Everything that the adapter in ``jetflow_serve.v1`` relies on."""
