"""Small copies between host and device that neither side waits for."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_COPIES = 4


class _Pinned:
    """Host memory of one copy, and whether the copy is done."""

    def __init__(self, like: Tensor) -> None:
        self._device, cuda = like.device, like.device.type == "cuda"
        self.host = torch.zeros(like.shape, dtype=like.dtype, pin_memory=cuda)
        self._done = torch.cuda.Event() if cuda else None

    def mark(self) -> None:
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        if self._done is not None:
            self._done.synchronize()


class Upload:
    """Brings values to one tensor on the device.

    Values are put into one of a few host buffers in turn, so that the host only waits if it is
    that many copies ahead.

    Args:
        tensor: where they go, in the order of the stream.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._buffers = [_Pinned(tensor) for _ in range(_COPIES)]
        self._turn = 0
        self._newest: NDArray[Any] | None = None

    def push(self, values: NDArray[Any]) -> None:
        """Starts the copy of ``values``, of the tensor's shape, unless they are there already.

        They may change afterwards. Nobody else may write to the tensor.
        """
        if self._newest is not None and np.array_equal(values, self._newest):
            return
        self._newest = values.copy()
        buffer = self._buffers[self._turn % _COPIES]
        self._turn += 1
        buffer.wait()
        np.copyto(buffer.host.numpy(), values)
        self._tensor.copy_(buffer.host, non_blocking=True)
        buffer.mark()


class Download:
    """Brings one tensor of the device to the host, and lets a few copies be on their way.

    Args:
        tensor: what is read.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor
        self._buffers = [_Pinned(tensor) for _ in range(_COPIES)]
        self._turn = 0

    def start(self) -> int:
        """Starts a copy of the tensor as it is now in the stream; ``read`` it before 4 more."""
        buffer = self._buffers[self._turn % _COPIES]
        buffer.host.copy_(self._tensor, non_blocking=True)
        buffer.mark()
        self._turn += 1
        return self._turn - 1

    def read(self, ticket: int) -> NDArray[Any]:
        """The values of that copy, once it has arrived."""
        buffer = self._buffers[ticket % _COPIES]
        buffer.wait()
        values: NDArray[Any] = buffer.host.numpy().copy()
        return values
