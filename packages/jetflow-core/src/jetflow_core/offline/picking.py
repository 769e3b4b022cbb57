"""The next token of each row, on the device and in one shape whatever the temperatures."""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128
"""Vocabulary entries whose masses are added up first."""
LOWEST = 1e-3
"""Temperatures between 0 and this one count as this one."""
OF_BLOCKS, OF_ENTRIES = 2.0**32, 2.0**44
"""Masses become whole numbers of these parts of the likeliest token's mass."""


def pick_tokens(logits: Tensor, temperatures: Tensor, uniforms: Tensor, *, sampled: bool) -> Tensor:
    """One token a row: the best where the temperature is 0, else by inverting the distribution.

    The drawn token is the first whose cumulative mass exceeds the row's uniform times all mass: the
    same one as ``reference_pick``'s, unless the uniform lies within the rounding of float32 of a
    border between two tokens. Its mass is never 0.

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
    drawn = _draw(_masses(logits, best, temperatures), uniforms)
    return torch.where(temperatures > 0, drawn, best)


def reference_pick(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> Tensor:
    """``pick_tokens`` with one sum over the whole vocabulary, in float64."""
    best = logits.argmax(-1)
    wide = logits.double() / temperatures.double().clamp(min=LOWEST)[:, None]
    mass = torch.softmax(wide, dim=-1).cumsum(-1)
    drawn = (mass <= uniforms.double()[:, None] * mass[:, -1:]).sum(-1)
    return torch.where(temperatures > 0, drawn.clamp(max=logits.shape[-1] - 1), best)


def _masses(logits: Tensor, best: Tensor, temperatures: Tensor) -> Tensor:
    """What each token has of the best one's probability, in float32 or wider."""
    inverse = 1.0 / temperatures.float().clamp(min=LOWEST)[:, None]
    peak = logits.gather(1, best[:, None]).float()
    # One pass that widens, scales and shifts.
    return torch.addcmul(-peak * inverse, logits, inverse).exp_()


def _draw(masses: Tensor, uniforms: Tensor) -> Tensor:
    """Find the block of the token, then the token in it.

    Sums over blocks and entries are sums of whole numbers, so that how a device adds a row up,
    which torch lets depend on the number of rows, changes nothing.
    """
    vocabulary = masses.shape[1]
    ends = (_block_sums(masses).double() * OF_BLOCKS).long().cumsum(-1)
    aim = (uniforms.double() * ends[:, -1].double()).floor().long()
    block = (ends <= aim[:, None]).sum(-1).clamp(max=ends.shape[1] - 1)
    before = ends.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0].masked_fill(block == 0, 0)

    entries = block[:, None] * BLOCK + torch.arange(BLOCK, device=masses.device)
    inside = masses.gather(1, entries.clamp(max=vocabulary - 1)).double() * OF_ENTRIES
    reached = inside.long().masked_fill(entries >= vocabulary, 0).cumsum(-1)
    aim = (aim - before) * int(OF_ENTRIES / OF_BLOCKS)
    place = (reached <= aim[:, None]).sum(-1)
    # The block's sum was rounded: what it has more than its entries falls to its last real one.
    last = (reached < reached[:, -1:]).sum(-1)
    return (block * BLOCK + torch.minimum(place, last)).clamp(max=vocabulary - 1)


def _block_sums(masses: Tensor) -> Tensor:
    whole = masses.shape[1] // BLOCK * BLOCK
    sums = masses[:, :whole].unflatten(1, (-1, BLOCK)).sum(-1)
    if whole == masses.shape[1]:
        return sums
    return torch.cat([sums, masses[:, whole:].sum(-1, keepdim=True)], dim=1)
