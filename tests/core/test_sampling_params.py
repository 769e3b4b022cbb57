import pickle

import numpy as np
import pytest
from jetflow_core.sampling import SamplingParams, bad_word_ids

NAN, INF = float("nan"), float("inf")

BAD = [
    ("max_new_tokens", -1, "at least 0"),
    ("max_new_tokens", 1.5, "whole number"),
    ("max_new_tokens", True, "whole number"),
    ("temperature", NAN, "finite"),
    ("temperature", INF, "finite"),
    ("temperature", -0.1, "at least 0"),
    ("temperature", "1", "finite number"),
    ("temperature", True, "finite number"),
    ("top_k", -1, "at least 0"),
    ("top_k", 2.0, "whole number"),
    ("top_p", 0, "above 0 and at most 1"),
    ("top_p", 1.01, "at most 1"),
    ("top_p", NAN, "finite"),
    ("min_p", -0.01, "at least 0"),
    ("min_p", 1.1, "at most 1"),
    ("repetition_penalty", 0.0, "at least 1e-06"),
    ("repetition_penalty", INF, "finite"),
    ("frequency_penalty", 2.5, "at least -2 and at most 2"),
    ("presence_penalty", -2.5, "at least -2 and at most 2"),
    ("presence_penalty", None, "finite number"),
    ("logit_bias", [1, 2], "map token ids"),
    ("logit_bias", {"5": 1.0}, "whole numbers"),
    ("logit_bias", {-1: 1.0}, "whole numbers >= 0"),
    ("logit_bias", {1: -INF}, "bad_words"),
    ("logit_bias", {1: True}, "finite number"),
    ("bad_words", "no", "token id tuples"),
    ("bad_words", ("no",), "bad_word_ids"),
    ("bad_words", ((),), "at least one"),
    ("bad_words", ((1, -2),), ">= 0"),
    ("bad_words", (3,), "token ids"),
    ("min_new_tokens", -1, "from 0 to max_new_tokens"),
    ("min_new_tokens", 129, "from 0 to max_new_tokens"),
    ("stop_token_ids", 3, "tuple of token ids"),
    ("stop_token_ids", (True,), "whole numbers"),
    ("stop", "x", "tuple of strings"),
    ("stop", ("",), "non-empty"),
    ("stop", (b"x",), "non-empty strings"),
    ("stop", ("a\ufffd",), "U+FFFD"),
    ("stop", 5, "tuple of strings"),
    ("ignore_eos", 1, "True or False"),
    ("seed", -1, "from 0 to"),
    ("seed", 2**64, "from 0 to"),
    ("seed", 1.0, "whole number"),
    ("logprobs", -1, "at least 0"),
    ("logprobs", True, "whole number"),
    ("logits_processor", 3, "function"),
]


@pytest.mark.parametrize(("field", "value", "allowed"), BAD)
def test_bad_value_is_refused_with_field_value_and_range(
    field: str, value: object, allowed: str
) -> None:
    with pytest.raises(ValueError, match=field) as raised:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert allowed in str(raised.value)
    shown = {"logit_bias": "", "bad_words": "", "stop_token_ids": "", "stop": ""}
    assert shown.get(field, repr(value)) in str(raised.value)


def test_every_field_has_a_bad_value_above() -> None:
    fields = set(SamplingParams.__dataclass_fields__)
    assert {field for field, _, _ in BAD} == fields


def test_values_are_stored_as_plain_immutable_types() -> None:
    bias = {np.int64(3): np.float32(0.5)}
    stop = ["a", "b"]
    params = SamplingParams(
        temperature=np.float32(0.5),
        top_k=np.int64(3),
        logit_bias=bias,  # type: ignore[arg-type]
        bad_words=[[1, np.int32(2)]],  # type: ignore[arg-type]
        stop=stop,  # type: ignore[arg-type]
        stop_token_ids=[7],  # type: ignore[arg-type]
    )
    bias.clear()
    stop.append("c")
    assert params.logit_bias == {3: 0.5}
    assert params.stop == ("a", "b")
    assert params.stop_token_ids == (7,)
    assert params.bad_words == ((1, 2),)
    assert type(params.temperature) is float and type(params.top_k) is int
    assert pickle.loads(pickle.dumps(params)) == params


def test_the_defaults_are_greedy_and_boundaries_are_allowed() -> None:
    assert SamplingParams().is_greedy
    assert SamplingParams(temperature=1.0, top_k=1).is_greedy
    assert not SamplingParams(temperature=1.0).is_greedy
    edge = SamplingParams(
        max_new_tokens=0,
        temperature=1e-300,
        top_p=1e-300,
        min_p=1.0,
        frequency_penalty=-2,
        presence_penalty=2,
        seed=2**64 - 1,
        logprobs=0,
    )
    assert edge.min_p == 1.0


def test_a_seed_is_drawn_once_and_kept() -> None:
    drawn = SamplingParams().with_seed()
    assert drawn.seed is not None and 0 <= drawn.seed < 2**53
    assert drawn.with_seed() is drawn
    assert SamplingParams(seed=5).with_seed().seed == 5
    assert len({SamplingParams().with_seed().seed for _ in range(20)}) == 20


def test_stopping_ids_follow_ignore_eos() -> None:
    assert SamplingParams(stop_token_ids=(3,)).stopping_ids([1, 2]) == {1, 2, 3}
    assert SamplingParams(stop_token_ids=(3,), ignore_eos=True).stopping_ids([1]) == {3}


class LetterEncoder:
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        return [ord(letter) for letter in text if letter != "\x00"]


def test_bad_words_are_spelt_with_and_without_a_space() -> None:
    assert bad_word_ids(["ab", " ab"], LetterEncoder()) == ((97, 98), (32, 97, 98))


@pytest.mark.parametrize("words", ["ab", [""], [" "], [3]])
def test_bad_words_that_are_no_words_are_refused(words: object) -> None:
    with pytest.raises(ValueError, match="bad_words"):
        bad_word_ids(words, LetterEncoder())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no tokens"):
        bad_word_ids(["\x00"], _NoTokens())


class _NoTokens:
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return []
