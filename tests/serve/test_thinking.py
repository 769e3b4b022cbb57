"""``jetflow serve`` tells where requests would be written in another mode than the head learnt."""

from pathlib import Path
from typing import Any

import pytest
from jetflow_core.head.checkpoint import HeadInfo
from jetflow_serve import thinking
from jetflow_serve.refusals import ServeRefused
from jetflow_serve.thinking import OPTION, thinking_note


class Tokenizer:
    """Thinks unless it is told not to, as Qwen3 does."""

    chat_template = "... enable_thinking ..."

    def apply_chat_template(self, *_: Any, enable_thinking: bool = True, **__: Any) -> str:
        return "" if enable_thinking else "<think></think>"


@pytest.fixture(autouse=True)
def _loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinking, "load_tokenizer", lambda _: Tokenizer())


OFF = '{"enable_thinking": false}'


@pytest.mark.parametrize(
    ("learnt", "options", "told"),
    [
        (True, [], False),
        (False, [], True),
        (None, [], False),
        (False, [OPTION, OFF], False),
        (False, [f"{OPTION}={OFF}"], False),
        (True, ["--port", "1", OPTION, OFF], True),
        (False, [OPTION, '{"other": 1}'], True),
    ],
)
def test_another_mode_is_told(
    learnt: bool | None, options: list[str], told: bool, tmp_path: Path
) -> None:
    note = thinking_note(HeadInfo(thinking=learnt), str(tmp_path), options)
    assert (note is not None) == told
    if note is not None:
        assert f"{OPTION} '{{\"enable_thinking\": {str(learnt).lower()}}}'" in note


def test_a_target_that_is_no_folder_is_left_to_vllm() -> None:
    assert thinking_note(HeadInfo(thinking=False), "org/model", []) is None


@pytest.mark.parametrize("value", ["{", "[1]", '{"enable_thinking": 1}'])
def test_a_bad_switch_is_refused(value: str, tmp_path: Path) -> None:
    with pytest.raises(ServeRefused, match=OPTION):
        thinking_note(HeadInfo(thinking=False), str(tmp_path), [OPTION, value])
