"""What every op of a round refuses before it computes, from shapes and types alone.

Values stay on the device: looking at them would make the host wait. What only values can show is
answered by the ops in their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

INTEGERS = (torch.int32, torch.int64)
LOGITS = (torch.float32, torch.bfloat16, torch.float16)
MOST_ROWS = 256
"""Rows of the largest tree, the root included: four ancestor words of 64 bits."""


def expect(
    name: str,
    tensor: Tensor,
    shape: Sequence[int],
    types: Sequence[torch.dtype],
    device: torch.device,
) -> None:
    """Raise ValueError, naming the tensor, unless shape, type and device are as said.

    A -1 in ``shape`` allows any size there.
    """
    found = list(tensor.shape)
    fits = len(found) == len(shape) and all(
        want in (-1, have) for want, have in zip(shape, found, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size < 0 else str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {found}")
    if tensor.dtype not in types:
        raise ValueError(f"{name} must be {' or '.join(map(str, types))}, got {tensor.dtype}")
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device} like the others, got {tensor.device}")


def expect_range(name: str, value: int, low: int, high: int) -> None:
    """Raise ValueError unless ``low <= value <= high``."""
    if not low <= value <= high:
        raise ValueError(f"{name} must be in {low}..{high}, got {value}")


def expect_contiguous(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless the tensor is contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()}")


def device_of(kernel: Any, tensor: Tensor) -> AbstractContextManager[Any]:
    """The context in which ``kernel`` may be launched on ``tensor``.

    Raises:
        ValueError: the kernel is compiled and the tensor is not on a CUDA device.
    """
    if tensor.is_cuda:
        return torch.cuda.device(tensor.device)
    # Triton's interpreter has no such cache of compiled variants, and takes tensors of the CPU.
    if hasattr(kernel, "device_caches"):
        raise ValueError(
            f"the kernels run on a CUDA device, got tensors on {tensor.device}; "
            "the references of the same signature run anywhere"
        )
    return nullcontext()


def placed(overlapped: bool) -> dict[str, bool]:
    """What tells a kernel with a constant ``OVERLAPPED`` that it waits for the one ahead by itself.

    Args:
        overlapped: whether it does; never in the interpreter.
    """
    # Triton knows the option of the launch for NVIDIA's cards only.
    return {"OVERLAPPED": True, "launch_pdl": True} if overlapped else {"OVERLAPPED": False}


def can_overlap(x: Tensor) -> bool:
    """Whether a kernel over ``x`` can be placed while the one ahead ends, and wait by itself.

    Args:
        x: any tensor of the call.
    """
    return x.is_cuda and torch.cuda.get_device_capability(x.device) >= (9, 0)


def power_of_two(size: int, *, least: int = 1) -> int:
    """The smallest power of two that is at least ``size`` and ``least``."""
    return max(least, 1 << max(0, size - 1).bit_length())
