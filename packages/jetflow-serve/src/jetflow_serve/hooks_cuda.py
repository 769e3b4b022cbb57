"""Hooks of a GPU: what our worker and attention build on there."""

from __future__ import annotations

from jetflow_serve.hook import Hook

_BACKENDS = "vllm.v1.attention.backends"
_FORWARD = (
    "layer",
    "query",
    "key",
    "value",
    "kv_cache",
    "attn_metadata",
    "output",
    "output_scale",
    "output_block_scale",
)
_UPDATE = ("layer", "key", "value", "kv_cache", "slot_mapping")
_LAYER = "a layer's attention, the rows of trees by ours"
_CACHE = "the head's keys and values"

_GPU = "vllm.v1.worker.gpu"
_DFLASH = f"{_GPU}.spec_decode.dflash.speculator"

CUDA = (
    Hook(f"{_GPU}.model_runner", "GPUModelRunner", "the runner that is extended"),
    Hook(
        f"{_GPU}.model_runner",
        "GPUModelRunner.add_requests",
        "the head learns of a request's slot",
        ("scheduler_output",),
    ),
    Hook(
        f"{_GPU}.states",
        "RequestState.num_computed_tokens",
        "where a request stands, on the device",
    ),
    Hook(
        _DFLASH,
        "DFlashSpeculator.init_cudagraph_manager",
        "no graphs of a chain's drafts",
        ("cudagraph_mode",),
    ),
    Hook(_DFLASH, "DFlashSpeculator.capture", "likewise"),
    Hook("vllm.v1.worker.gpu_worker", "Worker._make_model_runner", "our model runner"),
    Hook("vllm.v1.worker.gpu_worker", "Worker.load_model", "every layer learns the kernels"),
    Hook(
        "vllm.config.kernel",
        "KernelConfig.enable_jit_warmup",
        "a warm-up that verifies made-up drafts is left out",
    ),
    Hook(
        f"{_BACKENDS}.registry",
        "AttentionBackendEnum.FLASH_ATTN",
        "what a GPU takes for 16-bit types, overridden",
    ),
    Hook(
        f"{_BACKENDS}.registry",
        "AttentionBackendEnum.TRITON_ATTN",
        "what a GPU takes for float32, overridden",
    ),
    Hook(f"{_BACKENDS}.flash_attn", "FlashAttentionBackend.get_impl_cls", "our implementation"),
    Hook(f"{_BACKENDS}.flash_attn", "FlashAttentionImpl.forward", _LAYER, _FORWARD),
    Hook(f"{_BACKENDS}.flash_attn", "FlashAttentionImpl.do_kv_cache_update", _CACHE, _UPDATE),
    Hook(f"{_BACKENDS}.triton_attn", "TritonAttentionBackend.get_impl_cls", "our implementation"),
    Hook(f"{_BACKENDS}.triton_attn", "TritonAttentionImpl.forward", _LAYER, _FORWARD),
    Hook(f"{_BACKENDS}.triton_attn", "TritonAttentionImpl.do_kv_cache_update", _CACHE, _UPDATE),
)
"""Everything that ``jetflow_serve.cuda`` relies on beside the adapter of Model Runner V2."""
