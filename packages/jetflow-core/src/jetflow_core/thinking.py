"""The switch for thinking aloud that chat templates of some targets have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

SWITCH = "enable_thinking"
"""Its name in the chat templates of Qwen3 and others."""

_PROBE: tuple[dict[str, str], ...] = ({"role": "user", "content": "a"},)


def render(tokenizer: Any, message: Sequence[dict[str, str]], thinking: bool | None = None) -> str:
    """The text of a conversation, up to where the target answers.

    Args:
        tokenizer: of transformers, with a chat template.
        message: the conversation.
        thinking: whether the target is to think; None: as the template has it.

    Raises:
        ValueError: ``thinking`` is given and the template has no such switch.
    """
    switches = {}
    if thinking is not None:
        if not has_switch(tokenizer):
            raise ValueError(
                f"--thinking {_word(thinking)}: the target's chat template has no switch {SWITCH}"
            )
        switches = {SWITCH: thinking}
    text: str = tokenizer.apply_chat_template(
        list(message), add_generation_prompt=True, tokenize=False, **switches
    )
    return text


def has_switch(tokenizer: Any) -> bool:
    """Whether the target's chat template knows the switch."""
    return SWITCH in str(tokenizer.chat_template or "")


def mode(tokenizer: Any, thinking: bool | None = None) -> bool | None:
    """Whether a conversation so rendered lets the target think.

    Args:
        tokenizer: of transformers.
        thinking: as given to ``render``.

    Returns:
        None where the template has no switch, or none that changes how an answer begins.
    """
    if not has_switch(tokenizer):
        return None
    on, off = (render(tokenizer, _PROBE, each) for each in (True, False))
    if on == off:
        return None
    return thinking if thinking is not None else render(tokenizer, _PROBE) == on


def mismatch(learnt: bool | None, used: bool | None) -> str | None:
    """What to tell of a head whose texts were written in another mode than prompts are now.

    Args:
        learnt: of the head's texts; None: not known, or both.
        used: of the prompts; None: the target has no such modes.
    """
    if learnt is None or used is None or learnt == used:
        return None
    return (
        f"the draft head learnt from text with thinking {_word(learnt)}, and prompts are written "
        f"with thinking {_word(used)}: nothing is lost, but fewer tokens may be accepted a round"
    )


def thinking_of(word: Literal["on", "off"] | None) -> bool | None:
    """What a word on the command line says; None: as the template has it."""
    return None if word is None else word == "on"


def _word(thinking: bool) -> str:
    return "on" if thinking else "off"
