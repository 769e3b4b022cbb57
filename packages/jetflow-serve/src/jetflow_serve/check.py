"""Compares the installed vLLM with the table of hooks, from its sources, before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

from jetflow_serve.hook import Hook
from jetflow_serve.hooks import HOOKS
from jetflow_serve.installed import InstalledVllm, Sources, find_vllm


class VllmNotUsable(ValueError):
    """vLLM is absent, of a version without a table, or lacks hooks; the message names which."""


@dataclass(frozen=True, slots=True)
class MissingHook:
    """A hook that the installed vLLM does not have as the table says."""

    hook: Hook
    """What the table says."""
    found: str
    """What is there instead."""

    def __str__(self) -> str:
        return f"{self.hook.module}:{self.hook.attribute} ({self.hook.why}): {self.found}"


def check_hooks(vllm: InstalledVllm | None = None) -> list[MissingHook]:
    """The hooks that vLLM lacks or that changed their parameters; none: every hook is there.

    Args:
        vllm: sources to check; None: the vLLM of this environment.

    Raises:
        VllmNotUsable: no vLLM is installed, or there is no table for its version.
    """
    vllm = vllm or find_vllm()
    if vllm is None:
        raise VllmNotUsable(
            "vLLM is not installed here; install jetflow-serve[vllm], or in a clone of the "
            "repository: uv run --all-packages --extra vllm jetflow serve check"
        )
    if vllm.line not in HOOKS:
        raise VllmNotUsable(
            f"vLLM {vllm.version} is not supported; supported are {', '.join(HOOKS)}"
        )
    sources = Sources(vllm.folder)
    return [missing for hook in HOOKS[vllm.line] if (missing := _compare(sources, hook))]


def require_hooks(vllm: InstalledVllm | None = None) -> None:
    """Refuses to go on unless every hook is there.

    Raises:
        VllmNotUsable: as ``check_hooks``, or naming every hook that is missing.
    """
    missing = check_hooks(vllm)
    if missing:
        raise VllmNotUsable(
            f"vLLM lacks {len(missing)} hooks: {'; '.join(str(entry) for entry in missing)}"
        )


def _compare(sources: Sources, hook: Hook) -> MissingHook | None:
    found = sources.find(hook.module, hook.attribute)
    if found is None:
        return MissingHook(hook, "not found")
    if hook.parameters is None or found.parameters == hook.parameters:
        return None
    if found.parameters is None:
        return MissingHook(hook, "no function")
    removed = [name for name in hook.parameters if name not in found.parameters]
    added = [name for name in found.parameters if name not in hook.parameters]
    changes = [f"lacks {', '.join(removed)}"] if removed else []
    changes += [f"has new {', '.join(added)}"] if added else []
    return MissingHook(hook, f"its parameters changed: {'; '.join(changes) or 'their order'}")
