"""Where the checks of tree attention run, and through which version.

With TRITON_INTERPRET=1: Triton on the CPU. Without it, on a CUDA device: Triton, and the CUDA
version too where the device has capability 9.0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention
from jetflow_kernels.attention.plan import Cut
from torch import Tensor

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
HOPPER = (
    DEVICE == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
)


@pytest.fixture(params=["triton", "cuda"] if HOPPER else ["triton"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each version that this device has."""
    return request.param


@pytest.fixture(scope="session")
def moved(moved_together: Callable[..., list[Tensor]]) -> Callable[[Tensor], Tensor]:
    """Puts a tensor on the device with its strides."""
    return lambda tensor: moved_together([tensor], DEVICE)[0]


@pytest.fixture
def attend(backend: str, moved_together: Callable[..., list[Tensor]]) -> Callable[..., Tensor]:
    """`tree_attention` for tensors on the CPU, wherever and by whatever it is computed."""

    def attend(
        *arguments: Any, lse: Tensor | None = None, cut: Cut = "by_shapes", **named: Any
    ) -> Tensor:
        given = [*arguments, *named.values(), *([] if lse is None else [lse])]
        placed = moved_together(given, DEVICE)
        place_of_lse = None if lse is None else placed.pop()
        named = dict(zip(named, placed[len(arguments) :], strict=True))
        placed = placed[: len(arguments)]
        got = tree_attention(*placed, **named, lse=place_of_lse, backend=backend, cut=cut)
        if lse is not None:
            lse.copy_(place_of_lse)
        return got.cpu()

    return attend


@pytest.fixture
def start(backend: str) -> Callable[..., None]:
    """`launch` of the version."""
    if backend == "cuda":
        from jetflow_kernels.attention.k2.launch import launch
    else:
        from jetflow_kernels.attention.launch import launch
    return launch
