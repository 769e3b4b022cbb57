"""Guard words around everything that a runner makes, and how much memory is in use."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

GUARD_BYTES = 4096
"""On either side of a tensor; a multiple of every alignment that kernels ask for."""
_WORD = 0xA5
# Sums too: a state may begin as zeros plus a number.
_MAKERS = ("zeros", "ones", "full", "new_zeros", "new_ones", "new_full", "add", "__add__")


class Guards(TorchFunctionMode):
    """While it is entered, tensors made on a device lie between guard words.

    Args:
        device: whose tensors; those of the host are left alone, if it is another.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._type = device.type
        self._whole: list[tuple[str, Tensor]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Calls ``func``; what it makes comes back as a copy between guard words."""
        made = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _MAKERS and isinstance(made, Tensor):
            if made.device.type == self._type and made.numel():
                return self._between(made)
        return made

    def _between(self, made: Tensor) -> Tensor:
        size = made.numel() * made.element_size()
        whole = torch.empty(size + 2 * GUARD_BYTES, dtype=torch.uint8, device=made.device)
        whole.fill_(_WORD)
        inner = whole[GUARD_BYTES : GUARD_BYTES + size].view(made.dtype).view(made.shape)
        inner.copy_(made)
        name = f"{str(made.dtype).removeprefix('torch.')} {list(made.shape)}"
        self._whole.append((name, whole))
        return inner

    @property
    def count(self) -> int:
        """Guarded tensors."""
        return len(self._whole)

    @property
    def guarded_bytes(self) -> int:
        """Bytes of the tensors, guard words left out."""
        return sum(whole.numel() - 2 * GUARD_BYTES for _, whole in self._whole)

    def broken(self) -> list[str]:
        """What was written outside: type and shape of the tensor, the side, and how many bytes."""
        found = []
        for name, whole in self._whole:
            sides = {"before": whole[:GUARD_BYTES], "behind": whole[-GUARD_BYTES:]}
            for side, words in sides.items():
                count = int((words != _WORD).sum())
                if count:
                    found.append(f"{count} bytes {side} {name}")
        return found


def bytes_in_use(device: torch.device) -> int:
    """Bytes of all live tensors of this process on a device."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    gc.collect()
    storages: dict[int, int] = {}
    for each in gc.get_objects():
        # The type and not isinstance, which would ask strange objects for their class.
        if issubclass(type(each), Tensor) and each.device.type == device.type:
            storage = each.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
