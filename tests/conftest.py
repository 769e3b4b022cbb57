"""Fixtures shared by the tests of all packages.

What needs torch is imported where it is used: the tests of the trees run without it, at once.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from jetflow_core.embedded import embedded_target

# One process a core: threads of their own would only fight over the cores. Before torch starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test is timed: on a busy machine an example takes as long as it takes.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def embedded_folder() -> Path:
    """The Hugging Face folder of the embedded target, converted on first use."""
    return embedded_target()


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Any]:
    """Makes small random models: `tiny_model("qwen3")` has equal weights at each call.

    Kinds: llama, qwen2, qwen3, qwen3_moe. Options: dtype (float64), and fields of the config.
    """
    return _tiny_model


@pytest.fixture(scope="session")
def tiny_target() -> Any:
    """A Qwen3 target of 4 layers in float64, context 256, vocabulary 128, tapped at 0, 1 and 3."""
    from jetflow_core.target import Target

    return Target.from_model(_tiny_model("qwen3"), taps=(0, 1, 3))


_TINY_SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    # Wide enough for logits that differ; the usual 0.02 makes them nearly equal.
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_TINY_EXTRAS: dict[str, dict[str, int]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {
        "head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
}


def _tiny_model(kind: str, *, dtype: Any = None, **options: Any) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = torch.float64 if dtype is None else dtype
    config = AutoConfig.for_model(kind, **{**_TINY_SHAPE, **_TINY_EXTRAS[kind], **options})
    config._attn_implementation = "sdpa"
    # transformers' fused experts know no float64.
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval().requires_grad_(False)
    if dtype == torch.float64:
        _norms_in_float64(model)
    return model


def _norms_in_float64(model: Any) -> None:
    # transformers' norms compute in float32 whatever they are given, and a difference of 1e-16
    # before them can be one of 1e-7 behind them.
    import torch

    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child).__name__.endswith("RMSNorm"):
                size = child.weight.shape[0]
                norm = torch.nn.RMSNorm(size, child.variance_epsilon, dtype=torch.float64)
                norm.load_state_dict(child.state_dict())
                setattr(module, name, norm.requires_grad_(False))
