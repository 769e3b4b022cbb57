"""What can run here, found out without importing a compiler or starting a device."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

import torch

_LATER = "not part of this version"
_NO_TRITON = "triton is not installed"


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of tree attention."""

    name: str
    """reference, triton (``tree_attention``) or sm90."""
    usable: bool
    """Whether it can be called on this machine."""
    detail: str
    """Where it runs, or why it cannot."""


def backends() -> tuple[Backend, ...]:
    """The implementations that exist or are planned, and whether each can be used here.

    Examples:
        >>> backends()[0].name, backends()[0].usable
        ('reference', True)
    """
    triton, cuda = _triton(), torch.cuda.is_available()
    return (
        Backend("reference", True, f"plain torch {torch.__version__}, any device, float64 inside"),
        Backend("triton", cuda and triton is not None, f"{triton or _NO_TRITON}, {_device()}"),
        Backend("sm90", False, f"{_LATER}; here: {_device()}"),
    )


def _triton() -> str | None:
    try:
        return f"triton {metadata.version('triton')}"
    except metadata.PackageNotFoundError:
        return None


def _device() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (capability {major}.{minor})"
