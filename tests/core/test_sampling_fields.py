import dataclasses
from typing import Any

import pytest
from jetflow_core.request_fields import OPENAI_FIELDS, fields_table, from_mapping
from jetflow_core.sampling import SamplingParams

OWN = {field.name for field in dataclasses.fields(SamplingParams)}
# A value for each honoured field that differs from the default.
ASKED: dict[str, tuple[Any, str, Any]] = {
    "max_tokens": (7, "max_new_tokens", 7),
    "max_completion_tokens": (7, "max_new_tokens", 7),
    "min_tokens": (3, "min_new_tokens", 3),
    "temperature": (0.5, "temperature", 0.5),
    "top_k": (4, "top_k", 4),
    "top_p": (0.5, "top_p", 0.5),
    "min_p": (0.1, "min_p", 0.1),
    "repetition_penalty": (1.2, "repetition_penalty", 1.2),
    "frequency_penalty": (0.5, "frequency_penalty", 0.5),
    "presence_penalty": (-0.5, "presence_penalty", -0.5),
    "logit_bias": ({"12": -3}, "logit_bias", {12: -3.0}),
    "bad_words": ([[1, 2]], "bad_words", ((1, 2),)),
    "stop": ("END", "stop", ("END",)),
    "stop_token_ids": ([5], "stop_token_ids", (5,)),
    "ignore_eos": (True, "ignore_eos", True),
    "seed": (9, "seed", 9),
    "logprobs": (3, "logprobs", 3),
}


def test_every_honoured_field_sets_its_parameter_and_no_other() -> None:
    honoured = {name for name, rule in OPENAI_FIELDS.items() if rule.kind == "honoured"}
    assert honoured == {*ASKED, "top_logprobs"}
    for name, (value, parameter, stored) in ASKED.items():
        params = from_mapping({name: value})
        assert OPENAI_FIELDS[name].note == parameter
        assert params == dataclasses.replace(SamplingParams(), **{parameter: stored})
        assert params != SamplingParams()
    for name, rule in OPENAI_FIELDS.items():
        assert (rule.note in OWN) == (rule.kind == "honoured"), name


def test_every_other_field_is_refused_with_its_reason_or_asks_for_nothing() -> None:
    for name, rule in OPENAI_FIELDS.items():
        if rule.kind != "honoured":
            with pytest.raises(ValueError, match=name) as raised:
                from_mapping({name: "something"})
            assert rule.note in str(raised.value)
        for value in rule.neutral:
            assert from_mapping({name: value}) == SamplingParams()


def test_neutral_means_the_same_value_of_the_same_type() -> None:
    with pytest.raises(ValueError, match="n = True"):
        from_mapping({"n": True})
    with pytest.raises(ValueError, match="echo = 0"):
        from_mapping({"echo": 0})
    with pytest.raises(ValueError, match="response_format"):
        from_mapping({"response_format": {"type": "json_object"}})


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "temperature"),
        ("max_new_token", "max_new_tokens"),
        ("topp", "top_p"),
        ("guided_jsn", "guided_json"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"unknown sampling field '{name}'; did you mean .*{hint}"):
        from_mapping({name: 1})
    with pytest.raises(ValueError, match=r"unknown sampling field 'qqqq'$"):
        from_mapping({"qqqq": None})


def test_own_names_and_defaults() -> None:
    assert from_mapping({}) == SamplingParams()
    assert from_mapping({name: None for name in OWN}) == SamplingParams()
    params = SamplingParams(temperature=0.7, stop=("a",), logprobs=2, seed=3)
    assert from_mapping(dataclasses.asdict(params)) == params
    with pytest.raises(ValueError, match="top_p"):
        from_mapping({"top_p": 0})


def test_two_names_of_one_parameter_must_agree() -> None:
    assert from_mapping({"max_tokens": 5, "max_new_tokens": 5}).max_new_tokens == 5
    with pytest.raises(ValueError, match="max_tokens = 5 and max_new_tokens = 6 contradict"):
        from_mapping({"max_tokens": 5, "max_new_tokens": 6})


def test_the_chat_spelling_of_logprobs() -> None:
    assert from_mapping({"logprobs": True}).logprobs == 0
    assert from_mapping({"logprobs": True, "top_logprobs": 5}).logprobs == 5
    assert from_mapping({"logprobs": False, "top_logprobs": 0}).logprobs is None
    assert from_mapping({"logprobs": 0}).logprobs == 0
    for values in ({"top_logprobs": 5}, {"logprobs": False, "top_logprobs": 5}):
        with pytest.raises(ValueError, match="needs logprobs = true"):
            from_mapping(values)
    with pytest.raises(ValueError, match="contradict"):
        from_mapping({"logprobs": 3, "top_logprobs": 5})


def test_json_spellings() -> None:
    assert from_mapping({"top_k": -1}).top_k == 0
    with pytest.raises(ValueError, match="top_k"):
        from_mapping({"top_k": -2})
    with pytest.raises(ValueError, match="whole numbers"):
        from_mapping({"logit_bias": {"x": 1}})
    with pytest.raises(ValueError, match="map token ids"):
        from_mapping({"logit_bias": [1]})


class Words:
    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return [len(text)]


def test_bad_words_as_strings_need_a_tokenizer() -> None:
    assert from_mapping({"bad_words": ["abc"]}, Words()).bad_words == ((3,), (4,))
    with pytest.raises(ValueError, match="needs a tokenizer"):
        from_mapping({"bad_words": ["abc"]})
    with pytest.raises(ValueError, match="bad_words"):
        from_mapping({"bad_words": ["abc", [1]]}, Words())
    assert from_mapping({"bad_words": []}) == SamplingParams()


def test_the_table_lists_every_field_once() -> None:
    lines = fields_table().splitlines()[2:]
    assert len(lines) == len(OPENAI_FIELDS)
    for line, (name, rule) in zip(lines, OPENAI_FIELDS.items(), strict=True):
        assert line.startswith(f"| `{name}` | {rule.kind} |") and rule.note in line
