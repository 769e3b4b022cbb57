"""Whether a server's prompts are written in the mode that its head learnt from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from jetflow_core.head.checkpoint import HeadInfo
from jetflow_core.loading import load_tokenizer
from jetflow_core.thinking import SWITCH, mismatch, mode

from jetflow_serve.refusals import ServeRefused

OPTION = "--default-chat-template-kwargs"
"""Of vLLM; a request may still say otherwise."""


def thinking_note(info: HeadInfo, model: str, vllm_options: Sequence[str]) -> str | None:
    """What to tell of a head that learnt from text in another mode than requests have by default.

    Args:
        info: of the head.
        model: the target; one that is no local folder is not looked at.
        vllm_options: the user's own.

    Returns:
        None where the modes agree, or are not known.

    Raises:
        ServeRefused: the option of vLLM is no JSON mapping, or its switch is neither on nor off.
        TargetLoadError: the target's tokenizer cannot be loaded.
    """
    if info.thinking is None or not Path(model).is_dir():
        return None
    told = mismatch(info.thinking, mode(load_tokenizer(model), _default(vllm_options)))
    if told is None:
        return None
    wanted = json.dumps({SWITCH: info.thinking})
    return f"{told} ({OPTION} '{wanted}' makes the head's mode the default)"


def _default(options: Sequence[str]) -> bool | None:
    """The switch as the server's options have it; None: they leave it to the template."""
    found = None
    for place, option in enumerate(options):
        name, equals, value = option.partition("=")
        if name == OPTION:
            found = value if equals else next(iter(options[place + 1 :]), "")
    if found is None:
        return None
    try:
        given = json.loads(found)
    except json.JSONDecodeError as error:
        raise ServeRefused(f"{OPTION} is no JSON: {found!r}") from error
    switch = given.get(SWITCH) if isinstance(given, dict) else found
    if switch is not None and not isinstance(switch, bool):
        raise ServeRefused(f"{OPTION} must hold {SWITCH} as true or false; got {found}")
    return switch
