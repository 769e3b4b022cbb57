"""A stack computes what transformers computes, for every family and what its configs may say."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_core.stacks import stack_of_model

ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama of wide heads": ("llama", {"head_dim": 24, "rms_norm_eps": 1e-3}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", {}),
    "qwen3 of wide heads": ("qwen3", {"head_dim": 32, "attention_bias": True}),
    "qwen3 without shared heads": ("qwen3", {"num_key_value_heads": 4}),
    "qwen3_moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "qwen3_moe not normalised": ("qwen3_moe", {"norm_topk_prob": False}),
    "qwen3_moe with dense layers": (
        "qwen3_moe",
        {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    ),
    "qwen3_moe without experts": ("qwen3_moe", {"num_experts": 0}),
    **{
        f"{kind} {rope}": (kind, {"rope_parameters": {"rope_theta": 1e4, **parameters}})
        for kind, rope, parameters in zip(
            ("llama", "llama", "qwen3"), ROPES, ROPES.values(), strict=True
        )
    },
}
TAPS = (3, 0, 1)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *[(name, torch.float32) for name in MODELS],
        *[(name, torch.float64) for name in ("llama llama3", "qwen3 yarn", "qwen2", "qwen3_moe")],
    ],
)
def test_logits_and_taps_are_those_of_transformers(
    name: str,
    dtype: torch.dtype,
    lively_model: Callable[..., Any],
    paged_run: Any,
    some_requests: tuple[Any, ...],
    transformers_rows: Callable[..., tuple[Any, Any]],
) -> None:
    kind, options = MODELS[name]
    model = lively_model(kind, dtype=dtype, **options)
    stack = stack_of_model(model, taps=TAPS)
    assert stack.dtype == dtype
    paged = paged_run(stack, len(some_requests))
    paged.prefill([request.prefix for request in some_requests])
    hidden, features = paged.run(some_requests, padding=3)
    logits = stack.logits(hidden)
    assert hidden.isfinite().all() and features.isfinite().all()
    close = {"rtol": 0.0, "atol": 2e-5 if dtype == torch.float32 else 1e-11}
    first = 0
    for request in some_requests:
        rows = slice(first, first := first + len(request.tokens))
        expected, tapped = transformers_rows(model, request, TAPS)
        assert expected.abs().max() > 1.0
        torch.testing.assert_close(logits[rows], expected, **close)
        torch.testing.assert_close(features[rows], tapped, **close)
        assert torch.equal(logits[rows].argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3_moe", "llama llama3"])
def test_greedy_tokens_are_those_of_transformers(
    name: str,
    lively_model: Callable[..., Any],
    greedy: Callable[..., tuple[int, ...]],
    paged_run: Any,
    some_requests: tuple[Any, ...],
) -> None:
    kind, options = MODELS[name]
    model = lively_model(kind, dtype=torch.float32, **options)
    stack = stack_of_model(model)
    prompts = [(5, 77, 12, 12, 99, 3, 41), (7, 8)]
    paged = paged_run(stack, len(prompts))
    paged.prefill([prompt[:-1] for prompt in prompts])
    make = type(some_requests[0])
    texts, last = [[], []], [prompt[-1] for prompt in prompts]
    for _ in range(8):
        hidden, _ = paged.run([make((), (token,), (-1,)) for token in last])
        paged.lengths += 1
        last = stack.logits(hidden).argmax(-1).tolist()
        for text, token in zip(texts, last, strict=True):
            text.append(token)
    for prompt, text in zip(prompts, texts, strict=True):
        assert tuple(text) == greedy(model, prompt, 8)


@pytest.mark.slow
def test_the_embedded_target_writes_the_same_tokens(
    embedded_folder: Any,
    greedy: Callable[..., tuple[int, ...]],
    paged_run: Any,
    some_requests: tuple[Any, ...],
    transformers_rows: Callable[..., tuple[Any, Any]],
) -> None:
    from jetflow_core.stacks import load_stack, named_shape
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(embedded_folder, dtype=torch.float32)
    stack = load_stack(embedded_folder, taps=(1, 29), dtype=torch.float32)
    assert stack.shape == named_shape("smollm2-135m")
    assert stack.eos_token_ids == (2,)
    assert stack.lm_head is stack.embed_tokens
    tree = some_requests[0]
    paged = paged_run(stack, 1)
    paged.prefill([tree.prefix])
    hidden, features = paged.run([tree])
    logits, tapped = transformers_rows(model, tree, stack.taps)
    torch.testing.assert_close(stack.logits(hidden), logits, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(features, tapped, rtol=1e-4, atol=1e-2)

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Name three colours."}],
        add_generation_prompt=True, return_dict=False,
    )  # fmt: skip
    paged = paged_run(stack, 1, capacity=len(prompt) + 32)
    paged.prefill([prompt[:-1]])
    make, text = type(tree), [prompt[-1]]
    for _ in range(24):
        hidden, _ = paged.run([make((), (text[-1],), (-1,))])
        paged.lengths += 1
        text.append(int(stack.logits(hidden).argmax()))
    assert tuple(text[1:]) == greedy(model, prompt, 24)
