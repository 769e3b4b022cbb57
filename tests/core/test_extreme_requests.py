"""Requests at the edges of what a float32 logit can take, and such as contradict themselves."""

import math
from typing import Any

import pytest
import torch
from jetflow_core.picker import NonFiniteLogitsError, TokenPicker
from jetflow_core.request_fields import from_mapping
from jetflow_core.sampling import SamplingParams

VOCAB = 16


def _picker(prompt: tuple[int, ...] = (1, 2), **fields: Any) -> TokenPicker:
    return TokenPicker(SamplingParams(seed=1, **fields), prompt, (), VOCAB)


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 1.0, 100.0])
@pytest.mark.parametrize("bias", [1e4, 1e30])
def test_the_largest_bias_wins_at_every_temperature(temperature: float, bias: float) -> None:
    row = torch.linspace(-40, 40, VOCAB)
    picker = _picker(temperature=temperature, logit_bias={11: bias, 12: -bias})
    for history in ([], [3, 4]):
        assert picker.pick(row, history).token == 11
        law = picker.probabilities(row, history)
        assert law[11] == 1.0 and law[12] < 1e-80


@pytest.mark.parametrize("bias", [1.1e30, -1e39, 1e39, 1e300, 10**400], ids="abcde")
def test_a_bias_beyond_a_logit_is_refused_by_name(bias: float) -> None:
    with pytest.raises(ValueError, match=r"logit_bias\[11\] must be"):
        SamplingParams(logit_bias={11: bias})


@pytest.mark.parametrize("penalty", [1e-40, 9e-7, 1.1e6, 1e300])
def test_a_penalty_beyond_a_logit_is_refused_by_name(penalty: float) -> None:
    with pytest.raises(ValueError, match=r"repetition_penalty must be .* 1e-06 and at most 1e"):
        SamplingParams(repetition_penalty=penalty)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_smallest_penalty_prefers_what_was_seen(temperature: float) -> None:
    row = torch.linspace(1, 2, VOCAB)
    picker = _picker(temperature=temperature, repetition_penalty=1e-6)
    assert picker.pick(row, [5]).token == 5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_overflows_is_an_error_and_not_forbidden(temperature: float) -> None:
    row = torch.zeros(VOCAB)
    row[2] = 3e38
    picker = _picker(temperature=temperature, repetition_penalty=0.5)
    with pytest.raises(NonFiniteLogitsError, match=r"past the range of torch\.float32"):
        picker.pick(row, [])
    assert math.isinf(float(row[2] / 0.5))


def test_two_spellings_of_one_biased_token_must_agree() -> None:
    assert from_mapping({"logit_bias": {"5": 1, 5: 1.0}}).logit_bias == {5: 1.0}
    for spelt in ({"5": 1, 5: 2}, {"05": 1, "5": 9}, {5: 0, "5": None}):
        with pytest.raises(ValueError, match="logit_bias spells token 5 in two ways"):
            from_mapping({"logit_bias": spelt})


def test_what_is_wrong_is_told_in_the_names_of_the_request() -> None:
    with pytest.raises(ValueError, match=r"min_tokens = 200 needs a max_tokens.*after 128") as told:
        from_mapping({"min_tokens": 200})
    assert "new_tokens" not in str(told.value)
    assert from_mapping({"min_tokens": 200, "max_tokens": 300}).min_new_tokens == 200
    with pytest.raises(ValueError, match=r"^min_tokens must .* to max_completion_tokens \(100\)"):
        from_mapping({"min_tokens": 200, "max_completion_tokens": 100})
    with pytest.raises(ValueError, match=r"^max_tokens must be a whole number at least 0, got -1"):
        from_mapping({"max_tokens": -1})
    with pytest.raises(ValueError, match=r"^min_tokens must be a whole number"):
        from_mapping({"min_tokens": "2"})
    with pytest.raises(ValueError, match=r"^min_new_tokens must .* max_new_tokens \(3\)"):
        from_mapping({"min_new_tokens": 4, "max_new_tokens": 3})


@pytest.mark.parametrize("name", ["temperatur", "top_q", "max_token"])
def test_no_name_is_offered_twice(name: str) -> None:
    with pytest.raises(ValueError, match="did you mean") as told:
        from_mapping({name: 1})
    offered = str(told.value).partition("did you mean ")[2].rstrip("?").split(" or ")
    assert len(offered) == len(set(offered)) > 0
