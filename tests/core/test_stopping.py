from collections.abc import Sequence

import pytest
from jetflow_core.sampling import SamplingParams
from jetflow_core.stopping import FinishReason, StopRule

EOS = 99


def run(tokens: Sequence[int], **fields: object) -> tuple[list[int], FinishReason | None]:
    rule = StopRule(SamplingParams(**fields), [EOS])  # type: ignore[arg-type]
    taken: list[int] = []
    reason = rule.at_start()
    for token in tokens:
        if reason is not None:
            break
        taken.append(token)
        reason = rule.after(taken)
    return taken, reason


def test_a_stop_inside_the_limit_is_found_before_the_limit() -> None:
    assert run([10, 11, EOS, 20, 21, 22], max_new_tokens=5) == ([10, 11, EOS], "stop")


def test_a_stop_after_the_limit_is_never_seen() -> None:
    tokens = [10, 11, 12, 13, 14, EOS]
    assert run(tokens, max_new_tokens=5) == ([10, 11, 12, 13, 14], "length")


def test_a_stop_on_the_last_allowed_token_is_a_stop() -> None:
    assert run([10, EOS], max_new_tokens=2) == ([10, EOS], "stop")


@pytest.mark.parametrize("limit", [0, 1, 2, 15, 16])
def test_exactly_the_limit_is_generated(limit: int) -> None:
    taken, reason = run(range(20), max_new_tokens=limit)
    assert taken == list(range(limit)) and reason == "length"


def test_an_answer_that_goes_on_has_no_reason() -> None:
    assert run([1, 2], max_new_tokens=5) == ([1, 2], None)


def test_stop_token_ids_and_ignore_eos() -> None:
    assert run([1, 7, 2], stop_token_ids=(7,)) == ([1, 7], "stop")
    assert run([1, EOS, 7], stop_token_ids=(7,), ignore_eos=True) == ([1, EOS, 7], "stop")
    assert run([1, EOS], ignore_eos=True) == ([1, EOS], None)


def test_a_stopping_id_counts_only_after_min_new_tokens() -> None:
    tokens = [EOS, EOS, 1, EOS]
    assert run(tokens, min_new_tokens=1) == ([EOS, EOS], "stop")
    assert run(tokens, min_new_tokens=2) == (tokens, "stop")


def test_a_stop_string_is_a_stop_also_at_the_limit() -> None:
    rule = StopRule(SamplingParams(max_new_tokens=2), [EOS])
    assert rule.after([1], stop_string_found=True) == "stop"
    assert rule.after([1, 2], stop_string_found=True) == "stop"
    assert rule.after([1, 2]) == "length"
