"""Which of vLLM's groups of caches some layers belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jetflow_serve.refusals import ServeRefused


def one_group(
    groups: Sequence[Any], belongs: Callable[[str], bool], whose: str
) -> tuple[int, list[str]]:
    """The group that holds all layers in question.

    Args:
        groups: vLLM's, each with ``layer_names``.
        belongs: whether a layer of this name is in question.
        whose: whose layers they are, for the message.

    Returns:
        The group's index, and the names.

    Raises:
        ServeRefused: they are in no group, or in several.
    """
    names = [[name for name in each.layer_names if belongs(name)] for each in groups]
    found = [index for index, own in enumerate(names) if own]
    if len(found) != 1:
        raise ServeRefused(
            f"vLLM keeps the caches of the {whose}'s layers in {len(found)} groups; trees are "
            "served where it is one"
        )
    return found[0], names[found[0]]
