"""Which version of tree attention a call runs: the one asked for, or the faster one."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2.configurations import configuration_for
from jetflow_kernels.attention.k2.limits import supports, unavailable

Backend = Literal["auto", "triton", "cuda"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)


def check_backend(backend: str) -> None:
    """Refuses a name that stands for no version.

    Raises:
        ValueError: naming it and the allowed ones.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def choose(
    arguments: TreeAttentionArguments, *, out: Tensor | None, backend: str
) -> Literal["triton", "cuda"]:
    """The version that runs.

    ``auto`` is ``cuda`` where ``plan.prefers_cuda`` says so, the kernel takes the tensors and the
    machine can run it; ``triton`` everywhere else.

    Raises:
        ValueError: ``cuda`` was asked for, and its kernel does not take these tensors.
        RuntimeError: ``cuda`` was asked for, and this machine cannot run it.
    """
    check_backend(backend)
    if backend == "triton":
        return "triton"
    q = arguments.q
    if backend == "auto":
        rows, heads, dim = q.shape
        requests, group = arguments.prefix_len.shape[0], heads // arguments.k_pool.shape[2]
        if not plan.prefers_cuda(rows, requests, group, dim, q.dtype):
            return "triton"
        if supports(arguments, out=out) or unavailable(q.device, configuration_for(arguments)):
            return "triton"
        return "cuda"
    refused = supports(arguments, out=out)
    if refused is not None:
        raise ValueError(f"backend 'cuda' does not take these arguments: {refused}")
    refused = unavailable(q.device, configuration_for(arguments))
    if refused is not None:
        raise RuntimeError(f"backend 'cuda' cannot run here: {refused}")
    return "cuda"
