"""Whether a tensor can be copied 16 bytes at a time, as the copy engines of GPUs want it."""

from __future__ import annotations

from torch import Tensor

BYTES = 16
_LAST_STRIDE = 1 << 40
"""Strides of a tensor map are below so many bytes."""


def unaligned(name: str, tensor: Tensor) -> str | None:
    """Why 16 bytes at a time cannot be copied from or to a tensor, or None where they can.

    Args:
        name: what the tensor is called in the reason.
        tensor: any; only its address and strides are looked at.
    """
    if tensor.stride(-1) != 1:
        return f"{name} has a last stride of {tensor.stride(-1)}; it takes 1"
    if tensor.data_ptr() % BYTES:
        return f"{name} begins at an address that {BYTES} bytes do not divide"
    for axis, (size, stride) in enumerate(
        zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True)
    ):
        reach = stride * tensor.element_size()
        if size > 1 and not (0 < reach < _LAST_STRIDE and reach % BYTES == 0):
            return f"{name} has a stride of {reach} bytes on axis {axis}; {BYTES} must divide it"
    return None
