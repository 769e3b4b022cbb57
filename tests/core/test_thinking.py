"""The switch for thinking: rendered, recorded in heads, and compared where they are used."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jetflow_core.cli import main
from jetflow_core.head.checkpoint import HeadInfo
from jetflow_core.head.config import HeadConfigError
from jetflow_core.thinking import has_switch, mismatch, mode, render

SAYS = "{% for m in messages %}<{{ m['content'] }}>{% endfor %}"
# As Qwen3 has it: on, unless it is switched off.
ON = SAYS + "{% if enable_thinking is defined and enable_thinking is false %}()){% endif %}"
OFF = SAYS + "{% if enable_thinking is defined and enable_thinking %}({% endif %}"
IDLE = SAYS + "{# enable_thinking changes nothing here #}"
MESSAGE = [{"role": "user", "content": "hello"}]


def _tokenizer(template: str | None) -> Any:
    import jinja2

    def apply(message: Any, *, add_generation_prompt: bool, tokenize: bool, **switches: Any) -> str:
        assert add_generation_prompt and not tokenize
        return jinja2.Template(str(template)).render(messages=message, **switches)

    return SimpleNamespace(chat_template=template, apply_chat_template=apply)


def test_the_switch_reaches_the_template() -> None:
    tokenizer = _tokenizer(ON)
    assert render(tokenizer, MESSAGE) == render(tokenizer, MESSAGE, True) == "<hello>"
    assert render(tokenizer, MESSAGE, False) == "<hello>())"


@pytest.mark.parametrize(
    ("template", "left", "on", "off"),
    [(ON, True, True, False), (OFF, False, True, False), (IDLE, None, None, None)],
)
def test_the_mode_of_a_template(
    template: str, left: bool | None, on: bool | None, off: bool | None
) -> None:
    tokenizer = _tokenizer(template)
    assert has_switch(tokenizer)
    assert [mode(tokenizer, each) for each in (None, True, False)] == [left, on, off]


@pytest.mark.parametrize(("thinking", "said"), [(True, "--thinking on"), (False, "--thinking off")])
def test_a_template_without_the_switch_refuses_it(thinking: bool, said: str) -> None:
    for template in (SAYS, None):
        assert not has_switch(_tokenizer(template)) and mode(_tokenizer(template)) is None
        with pytest.raises(ValueError, match=f"^{said}: the target's chat template has no switch"):
            render(_tokenizer(template), MESSAGE, thinking)


def test_only_another_mode_is_told() -> None:
    for learnt in (None, True, False):
        for used in (None, True, False):
            told = mismatch(learnt, used)
            assert (told is not None) == (None not in (learnt, used) and learnt != used)
    assert "learnt from text with thinking off" in str(mismatch(False, True))
    assert "prompts are written with thinking on" in str(mismatch(False, True))


def test_a_head_records_it_as_true_or_false() -> None:
    assert HeadInfo().thinking is None and HeadInfo(thinking=False).thinking is False
    with pytest.raises(HeadConfigError, match="thinking must be true, false or null, got 1"):
        HeadInfo(thinking=1)  # type: ignore[arg-type]  # what a config.json may hold


def test_generate_without_a_template_refuses_the_switch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["jetflow", "generate", "hello", "--raw", "--thinking", "off"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert "--thinking is a switch of the chat template, and --raw uses none" in (
        capsys.readouterr().err
    )
