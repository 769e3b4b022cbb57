"""Compact storage of a head's matrices: one signed byte a weight, one scale a row."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCALE_SUFFIX = ".row_scale"
FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Types in which weights may be stored and used."""


class StorageError(ValueError):
    """A stored tensor is of a type that stands for no weights, or its scales do not fit it."""


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
    """The tensors that ``quantize_rows`` stored, in fp32; other tensors pass unchanged.

    Raises:
        StorageError: naming a tensor that is neither of floating type nor int8 with scales, or
            scales without int8 weights of as many rows.
    """
    weights = {name: each for name, each in stored.items() if not name.endswith(SCALE_SUFFIX)}
    scales = {name: each for name, each in stored.items() if name.endswith(SCALE_SUFFIX)}
    for name, scale in scales.items():
        _check_scale(name, scale, weights.get(name.removesuffix(SCALE_SUFFIX)))
    return {
        name: _wide(name, tensor, scales.get(name + SCALE_SUFFIX))
        for name, tensor in weights.items()
    }


def _check_scale(name: str, scale: Tensor, weights: Tensor | None) -> None:
    if weights is None:
        raise StorageError(f"{name} is there without the weights that it scales")
    if weights.dtype != torch.int8:
        raise StorageError(f"{name} scales weights of type {weights.dtype}: only int8 has scales")
    if weights.dim() != 2 or scale.shape != weights.shape[:1]:
        raise StorageError(
            f"{name} has shape {tuple(scale.shape)} for weights of shape {tuple(weights.shape)}: "
            "one scale a row of a matrix is expected"
        )
    if scale.dtype not in FLOATING or not bool((scale >= 0).all()):
        raise StorageError(f"{name} holds scales that are not floating numbers of at least 0")


def _wide(name: str, tensor: Tensor, scale: Tensor | None) -> Tensor:
    if scale is not None:
        return tensor.float() * scale.float()[:, None]
    if tensor.dtype not in FLOATING:
        raise StorageError(
            f"{name} is of type {tensor.dtype}; weights are {', '.join(map(str, FLOATING))}, or "
            f"int8 with {name}{SCALE_SUFFIX}"
        )
    return tensor
