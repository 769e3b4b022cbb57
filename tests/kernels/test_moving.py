"""What puts the checks' tensors on a device keeps strides, offsets and common storages."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor


def views() -> list[Tensor]:
    packed = torch.arange(2 * 3 * 4 * 10, dtype=torch.float16).view(2, 3, 4, 10)
    return [
        packed[..., :5].transpose(1, 2),
        packed[..., 5:].transpose(1, 2),
        torch.arange(7)[2:],
        torch.empty(0, 4),
        torch.tensor([True, False]),
    ]


def test_layouts_survive(moved_together: Callable[..., list[Tensor]]) -> None:
    given = views()
    for tensor, copy in zip(given, moved_together(given, "meta"), strict=True):
        assert copy.device.type == "meta"
        assert (copy.dtype, copy.shape, copy.stride()) == (
            tensor.dtype, tensor.shape, tensor.stride()
        )  # fmt: skip
        assert copy.storage_offset() == tensor.storage_offset()


def test_what_is_there_stays(moved_together: Callable[..., list[Tensor]]) -> None:
    given = views()
    for tensor, same in zip(given, moved_together(given, "cpu"), strict=True):
        assert same is tensor


def test_views_of_one_storage_stay_together(
    moved_together: Callable[..., list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = views()
    # No second device here: one that is called otherwise and is the CPU all the same.
    original = Tensor.to
    monkeypatch.setattr(
        Tensor, "to", lambda self, device: original(self, "cpu", copy=True), raising=True
    )
    keys, values, numbers, empty, flags = moved_together(given, "elsewhere")
    for tensor, copy in zip(given, (keys, values, numbers, empty, flags), strict=True):
        assert torch.equal(tensor, copy)
        assert tensor.stride() == copy.stride()
    shared = keys.untyped_storage().data_ptr()
    assert shared == values.untyped_storage().data_ptr() != given[0].untyped_storage().data_ptr()
    keys.fill_(-1.0)
    assert values[0, 0, 0, 0] == 5.0
    assert given[0][0, 0, 0, 0] == 0.0
