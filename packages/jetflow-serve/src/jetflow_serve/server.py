"""The command line of vLLM's server for a target with a head."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jetflow_serve.options import SECTION, ServeOptions, read_options
from jetflow_serve.refusals import SCHEDULER, WORKER, ServeRefused

SERVER = "vllm.entrypoints.openai.api_server"
_FILLED_IN = ("--speculative-config", "--worker-cls", "--model")
_ADDITIONAL = "--additional-config"


def server_arguments(
    model: str, head: str, budget: int, given: Sequence[str], section: Mapping[str, Any]
) -> list[str]:
    """The arguments of ``python -m vllm.entrypoints.openai.api_server``.

    Args:
        model: the target, as vLLM takes it.
        head: the head's folder.
        budget: most rows of one verify pass, root included, at least 2.
        given: the user's own options of vLLM.
        section: the ``jetflow`` section.

    Raises:
        ServeRefused: an option is given that is filled in here, or the budget drafts nothing.
        OptionError: the section is wrong.
    """
    if budget < 2:
        raise ServeRefused(f"budget {budget} counts the root and drafts nothing: at least 2")
    for option in _FILLED_IN:
        if any(argument.partition("=")[0] == option for argument in given):
            raise ServeRefused(f"{option} is filled in by jetflow serve; leave it out")
    rest, additional = _additional(given)
    if not any(argument.partition("=")[0].endswith("async-scheduling") for argument in rest):
        # vLLM would choose it on a GPU.
        rest = ["--no-async-scheduling", *rest]
    additional[SECTION] = {**additional.get(SECTION, {}), **section}
    if read_options(additional).audit:
        rest = ["--scheduler-cls", SCHEDULER, *rest]
    speculative = {"method": "dflash", "model": head, "num_speculative_tokens": budget - 1}
    return [
        "--model", model,
        "--worker-cls", WORKER,
        "--speculative-config", json.dumps(speculative),
        _ADDITIONAL, json.dumps(additional),
        *rest,
    ]  # fmt: skip


def tree_section(options: ServeOptions) -> dict[str, Any]:
    """The ``jetflow`` section that says what ``options`` say, without the defaults."""
    values = {
        "mode": options.mode,
        "budget": options.budget,
        "depth": options.depth,
        "max_children": options.max_children,
        "audit": options.audit or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _additional(given: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """The user's options without ``--additional-config``, and what that one says."""
    rest: list[str] = []
    found: dict[str, Any] = {}
    arguments = iter(given)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name != _ADDITIONAL:
            rest.append(argument)
            continue
        text = value if equals else next(arguments, "")
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise ServeRefused(f"{_ADDITIONAL} is no JSON: {text!r}") from error
        if not isinstance(found, dict):
            raise ServeRefused(f"{_ADDITIONAL} must be a mapping; got {text}")
    return rest, found
