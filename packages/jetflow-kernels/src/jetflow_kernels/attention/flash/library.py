"""Finds flash-attn 4 without importing it, and loads it when it is first called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from typing import Any

EXTRA = "pip install 'jetflow-kernels[flash]'"
DISTRIBUTION = "flash-attn-4"
NEEDED = (DISTRIBUTION, "nvidia-cutlass-dsl", "quack-kernels", "apache-tvm-ffi")
"""What has to be installed; the last three are what it compiles its kernels with."""
PARAMETERS = frozenset(
    {
        "cu_seqlens_q", "seqused_k", "max_seqlen_q", "page_table", "softmax_scale", "causal",
        "mask_mod", "aux_tensors", "return_lse",
    }
)  # fmt: skip
"""Of its ``flash_attn_varlen_func``, as far as they are used here."""


class FlashError(RuntimeError):
    """flash-attn 4 is installed and cannot be used."""


@dataclass(frozen=True, slots=True)
class Library:
    """The parts of flash-attn 4 that are used."""

    attend: Callable[..., Any]
    """Its attention over packed rows of many requests."""
    cute: Any
    """The language that its mask functions are written in."""
    cutlass: Any
    to_vector: Callable[[Any, Any], Any]
    """Makes a mask function's result of a scalar and its type."""


def version() -> str | None:
    """The installed version of flash-attn 4, or None."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def missing() -> str | None:
    """What is not installed and how to install it, or None; imports nothing."""
    absent = [name for name in NEEDED if not _installed(name)]
    return f"{', '.join(absent)} not installed ({EXTRA})" if absent else None


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


@cache
def load() -> Library:
    """Imports flash-attn 4, which takes seconds the first time.

    Raises:
        FlashError: it cannot be imported, or it is a version of another interface.
    """
    try:
        attend = import_module("flash_attn.cute").flash_attn_varlen_func
        found = Library(
            attend,
            import_module("cutlass.cute"),
            import_module("cutlass"),
            import_module("flash_attn.cute.utils").scalar_to_ssa,
        )
    except (ImportError, AttributeError) as error:
        raise FlashError(f"{DISTRIBUTION} {version()} cannot be imported: {error}") from error
    lacking = PARAMETERS - set(inspect.signature(attend).parameters)
    if lacking:
        raise FlashError(
            f"{DISTRIBUTION} {version()} has no {', '.join(sorted(lacking))} in "
            f"flash_attn_varlen_func; a newer version has ({EXTRA})"
        )
    return found
