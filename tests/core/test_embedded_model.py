from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]

# The vocabulary lacks these control characters and the bytes that start code points from U+40000.
TEXT = st.text(
    st.characters(
        max_codepoint=0x3FFFF,
        exclude_categories=["Cs"],
        exclude_characters="\x04\x06\x13\x14\x16\x1d",
    )
)


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(embedded_folder)


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text).input_ids)


@pytest.mark.parametrize(
    "text",
    [
        "\n\n1. x",
        "  12",
        "def f(x):\n    return 12 + x[ 3]\n\n\n42",
        "1\t2\r\n3   ",
        " ,don 't . ",
        "😀 🤷🏽‍♀️",
        "汉字 かな 한국어 123",
        "é ½ ² Ⅷ",
        "<|im_start|>user\n1<|im_end|>",
        "",
    ],
)
def test_round_trip(tokenizer: Any, text: str) -> None:
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


@given(text=TEXT)
def test_round_trip_of_any_text(tokenizer: Any, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text)) == text


@given(before=TEXT, digit=st.sampled_from("0123456789"), after=TEXT)
def test_a_digit_is_a_token_of_its_own(tokenizer: Any, before: str, digit: str, after: str) -> None:
    left, middle, right = (encode(tokenizer, part) for part in (before, digit, after))
    assert len(middle) == 1
    assert encode(tokenizer, before + digit + after) == [*left, *middle, *right]


def test_digits_after_blank_lines_and_indentation(tokenizer: Any) -> None:
    assert encode(tokenizer, "\n\n1. x") == [1116, 33, 30, 1792]
    assert encode(tokenizer, "  12") == [256, 33, 34]


def test_special_tokens(tokenizer: Any) -> None:
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.model_max_length == 8192
    assert len(tokenizer) == 49_152
    assert encode(tokenizer, "a<|im_end|>") == [*encode(tokenizer, "a"), 2]
    assert tokenizer.decode([2, 1, 0], skip_special_tokens=True) == ""


def test_chat_template_adds_no_token_of_its_own(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(QUESTION, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n")
    assert text.endswith(
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    encoded = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)
    assert encoded["input_ids"] == encode(tokenizer, text)
    assert encoded["input_ids"].count(1) == 3  # one for each message, none before them


def test_model_answers(embedded_folder: Path, tokenizer: Any) -> None:
    model, info = AutoModelForCausalLM.from_pretrained(
        embedded_folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(info.values()), info
    assert model.config.rms_norm_eps == 1e-5
    assert model.config.rope_parameters["rope_theta"] == 1e5
    assert model.lm_head.weight is model.model.embed_tokens.weight
    prompt = tokenizer.apply_chat_template(
        QUESTION, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        output = model.generate(**prompt, max_new_tokens=12)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert "Paris" in answer
    assert answer.endswith("<|im_end|>")
