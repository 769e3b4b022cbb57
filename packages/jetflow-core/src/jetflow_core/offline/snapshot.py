"""What the rows had written at one moment, brought to the host without waiting for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Snapshot:
    """Host copies of a few tensors of one device, taken again and again into the same memory.

    Args:
        tensors: what is copied.
    """

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self._tensors = tensors
        cuda = tensors[0].device.type == "cuda"
        self._host = [
            torch.empty(each.shape, dtype=each.dtype, pin_memory=cuda) for each in tensors
        ]
        self._taken = torch.cuda.Event() if cuda else None

    def take(self) -> None:
        """Copy what the tensors hold after all work that was started so far."""
        for host, tensor in zip(self._host, self._tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        if self._taken is not None:
            self._taken.record(torch.cuda.current_stream(self._tensors[0].device))

    def read(self) -> tuple[NDArray[Any], ...]:
        """Wait for the copies; valid until they are taken again."""
        if self._taken is not None:
            self._taken.synchronize()
        return tuple(np.asarray(host) for host in self._host)
