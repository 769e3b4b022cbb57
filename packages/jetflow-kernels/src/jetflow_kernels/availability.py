"""What can run here, found out without importing a compiler or starting a device."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata

import torch

from jetflow_kernels.attention.flash import library, limits
from jetflow_kernels.attention.k2.limits import unavailable

_NO_TRITON = "triton is not installed"


@dataclass(frozen=True, slots=True)
class Backend:
    """One implementation of tree attention."""

    name: str
    """reference, or a ``backend`` of ``tree_attention``: triton, cuda, flash."""
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
        _cuda(triton),
        _flash(),
    )


def _cuda(triton: str | None) -> Backend:
    device = (
        torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    )
    refused = "no CUDA device" if device is None else unavailable(device)
    if triton is None:
        # Its pieces are put together in Triton.
        refused = _NO_TRITON
    return Backend("cuda", refused is None, refused or f"CUDA C++ for sm_90a, {_device()}")


def _flash() -> Backend:
    refused = library.missing()
    if refused is None and not torch.cuda.is_available():
        refused = "no CUDA device"
    elif refused is None:
        refused = limits.unavailable(torch.device("cuda", torch.cuda.current_device()))
    told = f"{library.DISTRIBUTION} {library.version()}, {_device()}"
    return Backend("flash", refused is None, refused or told)


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
