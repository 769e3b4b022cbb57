"""Triton's interpreter, made to round as devices do."""

from __future__ import annotations

import numpy as np
import pytest
import torch


@pytest.fixture
def rounding_as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter cuts float32 to bfloat16 where devices round to the nearest."""
    from triton.runtime import interpreter

    cut = interpreter._convert_float

    def convert(values: np.ndarray, source: object, target: object, mode: object) -> np.ndarray:
        if (str(source), str(target)) != ("fp32", "bf16"):
            return cut(values, source, target, mode)
        rounded = torch.from_numpy(np.array(values)).bfloat16()
        return rounded.view(torch.int16).numpy().view(np.uint16)

    monkeypatch.setattr(interpreter, "_convert_float", convert)
