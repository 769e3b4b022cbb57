"""The next token of each row, on the device and in one shape whatever the temperatures."""

from __future__ import annotations

import torch
from torch import Tensor


def pick_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor, *, sampled: bool) -> Tensor:
    """One token a row: the best where the temperature is 0, else by inverting the distribution.

    Args:
        logits: ``[R, vocab]``.
        temperatures: ``[R]``; 0 is greedy.
        uniforms: ``[R]`` in [0, 1).
        sampled: False promises that every temperature is 0.

    Returns:
        int64 ``[R]``.
    """
    best = logits.argmax(-1)
    if not sampled:
        return best
    wide = logits.float() / temperatures.clamp(min=1e-3)[:, None]
    mass = torch.softmax(wide, dim=-1).cumsum(-1)
    drawn = (mass <= uniforms[:, None] * mass[:, -1:]).sum(-1).clamp(max=logits.shape[-1] - 1)
    return torch.where(temperatures > 0, drawn, best)
