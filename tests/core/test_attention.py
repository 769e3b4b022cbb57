from types import SimpleNamespace
from typing import cast

import pytest
import torch
from jetflow_core.attention import Layout, Pass, attend
from torch import Tensor


class Recorder:
    """A layout that answers with its query, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, tuple[int, ...], float]] = []

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        self.asked.append((layer, tuple(key.shape), scaling))
        return query.transpose(0, 1)


def test_the_layout_is_asked_about_the_layer_that_calls() -> None:
    layout = Recorder()
    query, key = torch.randn(1, 6, 3, 8), torch.randn(1, 2, 3, 8)
    out, weights = attend(
        SimpleNamespace(layer_idx=5),
        query,
        key,
        key,
        None,
        scaling=0.5,
        sliding_window=None,
        jetflow=Pass(cast(Layout, layout)),
    )
    assert layout.asked == [(5, (2, 3, 8), 0.5)]
    assert weights is None
    assert torch.equal(out, query.transpose(1, 2))


def test_the_model_is_refused_outside_a_session() -> None:
    rows = torch.zeros(1, 2, 1, 8)
    with pytest.raises(RuntimeError, match="through a session"):
        attend(SimpleNamespace(layer_idx=0), rows, rows, rows, None, scaling=1.0)


def test_a_mask_of_somebody_else_is_refused() -> None:
    rows, mask = torch.zeros(1, 2, 1, 8), torch.zeros(1, 1, 1, 1)
    own = Pass(cast(Layout, Recorder()))
    with pytest.raises(RuntimeError, match="through a session"):
        attend(SimpleNamespace(layer_idx=0), rows, rows, rows, mask, scaling=1.0, jetflow=own)
