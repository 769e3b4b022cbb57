"""Random requests with many ties, and trees compared field by field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from triton.runtime import interpreter

# Equal ones, ones that rounding makes equal below a parent, certain ones and impossible ones.
LOG_PROBS = np.array([0.0, -0.0, -0.5, -0.5, -1.0, -1e-17, -1 - 2**-52, -np.inf, -0.3, -0.1])


@dataclass(frozen=True)
class Requests:
    """Arguments of the builders."""

    tokens: Tensor
    log_probs: Tensor
    roots: Tensor
    budgets: Tensor
    root_positions: Tensor
    capacity: int

    @property
    def arguments(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@pytest.fixture(scope="session")
def make_requests() -> Callable[..., Requests]:
    """`make_requests(seed, most_rows=, requests=)`: random tables of small random shapes."""
    return random_requests


def random_requests(seed: int, *, most_rows: int = 40, requests: int = 2) -> Requests:
    # Copies, since those are made on the default device and views of numpy's memory are not.
    rng = np.random.default_rng(seed)
    depth, width = int(rng.integers(0, 6)), int(rng.integers(1, 6))
    lines = int(rng.choice([1, width]))
    capacity = int(rng.integers(1, most_rows + 1))
    tokens = np.empty((requests, depth, width), dtype=np.int64)
    for level in tokens.reshape(-1, width):
        level[:] = rng.permutation(50)[:width]
    return Requests(
        torch.tensor(tokens),
        torch.tensor(rng.choice(LOG_PROBS, size=(requests, depth, lines, width))),
        torch.tensor(rng.integers(0, 50, size=requests)),
        torch.tensor(rng.integers(1, capacity + 1, size=requests)),
        torch.tensor(rng.integers(0, 99, size=requests)),
        capacity,
    )


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Any, Any], None]:
    """`assert_same(a, b)`: two results of one op are equal in every tensor, bit by bit."""
    return same


def same(found: Any, wanted: Any) -> None:
    names = [field.name for field in fields(wanted)]
    assert names
    for name in names:
        a, b = getattr(found, name), getattr(wanted, name)
        assert a.dtype == b.dtype, name
        assert torch.equal(a, b), name


@pytest.fixture
def rounding_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts float32 to bfloat16 where devices round to the nearest."""
    cut = interpreter._convert_float

    def convert(values: np.ndarray, source: object, target: object, mode: object) -> np.ndarray:
        if (str(source), str(target)) != ("fp32", "bf16"):
            return cut(values, source, target, mode)
        rounded = torch.from_numpy(np.array(values)).bfloat16()
        return rounded.view(torch.int16).numpy().view(np.uint16)

    monkeypatch.setattr(interpreter, "_convert_float", convert)
