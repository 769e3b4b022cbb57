"""Which version of tree attention a call runs, and the tiles it is cut into."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.flash import limits as flash
from jetflow_kernels.attention.k2.configurations import configuration_for
from jetflow_kernels.attention.k2.limits import supports, unavailable

Version = Literal["triton", "cuda", "flash"]
"""What can compute a call. ``flash`` is flash-attn 4, an extra."""
Backend = Literal["auto", "triton", "cuda", "flash"]
"""What can be asked for: a version, or the faster one of ``triton`` and ``cuda``."""
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def check_backend(backend: str) -> None:
    """Refuses a name that stands for no version.

    Raises:
        ValueError: naming it and the allowed ones.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def check_cut(cut: str) -> None:
    """Refuses a name that stands for no way to cut.

    Raises:
        ValueError: naming it and the allowed ones.
    """
    if cut not in plan.CUTS:
        raise ValueError(f"cut must be one of {', '.join(plan.CUTS)}, got {cut!r}")


def tiles_of(arguments: TreeAttentionArguments, cut: str) -> plan.Tiles:
    """The tiles of a call."""
    rows, heads, dim = arguments.q.shape
    if cut == "by_request":
        return plan.tiles_of_all(dim, arguments.q.dtype)
    requests, group = arguments.prefix_len.shape[0], heads // arguments.k_pool.shape[2]
    return plan.tiles_for(rows, requests, group, dim, arguments.q.dtype)


def choose(
    arguments: TreeAttentionArguments, *, out: Tensor | None, backend: str, cut: str
) -> Version:
    """The version that runs.

    ``auto`` is ``cuda`` where ``plan.prefers_cuda`` says so, the kernel takes the tensors and the
    machine can run it; ``triton`` everywhere else; never ``flash``.

    Raises:
        ValueError: a version was asked for that does not take these tensors.
        RuntimeError: a version was asked for that this machine cannot run.
    """
    check_backend(backend)
    if backend == "triton":
        return "triton"
    if backend == "flash":
        _require("flash", flash.supports(arguments, cut=cut), flash.unavailable(arguments.q.device))
        return "flash"
    q, tiles = arguments.q, tiles_of(arguments, cut)
    if backend == "auto" and not plan.prefers_cuda(q.shape[2], q.dtype):
        return "triton"
    unsupported = supports(arguments, out=out)
    absent = None if unsupported else unavailable(q.device, configuration_for(arguments, tiles))
    if backend == "auto" and (unsupported or absent):
        return "triton"
    _require("cuda", unsupported, absent)
    return "cuda"


def _require(version: Version, unsupported: str | None, absent: str | None) -> None:
    """Refuses a version that was asked for, with the reason."""
    if unsupported is not None:
        raise ValueError(f"backend {version!r} does not take these arguments: {unsupported}")
    if absent is not None:
        raise RuntimeError(f"backend {version!r} cannot run here: {absent}")
