"""Compact storage of a head's matrices: one signed byte a weight, one scale a row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE_SUFFIX = ".row_scale"


def quantize_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 with an fp32 scale a row (``name.row_scale`` ``[rows]``); vectors as fp32.

    The largest magnitude of a row becomes 127, so a weight moves by at most half a step of its
    row: 0.4 % of the row's largest weight.
    """
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        wide = tensor.detach().float().cpu()
        if wide.dim() != 2:
            stored[name] = wide.contiguous()
            continue
        scale = wide.abs().amax(dim=1) / 127.0
        steps = (wide / scale.clamp(min=1e-30)[:, None]).round().clamp(-127, 127)
        stored[name] = steps.to(torch.int8).contiguous()
        stored[name + SCALE_SUFFIX] = scale.contiguous()
    return stored


def dequantize_rows(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that ``quantize_rows`` stored, in fp32; other tensors pass unchanged."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE_SUFFIX):
            continue
        scale = stored.get(name + SCALE_SUFFIX)
        tensors[name] = tensor if scale is None else tensor.float() * scale[:, None]
    return tensors
