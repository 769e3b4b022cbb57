"""Acceptance on the device: follow the target's picks down every tree at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_tree.torch.trees import DeviceTrees, check_int64

NOT_ACCEPTED = -1
"""Fills `rows` and `tokens` behind the accepted path."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeviceAccepted:
    """The accepted path of every request; D is the trees' `max_depth`."""

    rows: Tensor
    """[R, D] int64: accepted rows from depth 1 down, the root excluded, then -1."""
    tokens: Tensor
    """[R, D] int64: their tokens, then -1."""
    num_accepted: Tensor
    """[R] int64, from 0 to D."""
    correction: Tensor
    """[R] int64: the target's pick at the last row of the walk; it follows the accepted tokens."""


def walk(trees: DeviceTrees, picks: Tensor) -> DeviceAccepted:
    """Walk every tree from its root along the child that carries the target's pick.

    Equals `jetflow_tree.walk` on every request. Picks of padding rows are not read.

    Args:
        trees: The trees; no node has two children with one token.
        picks: [R, B] int64, the token that the target picks after each row.

    Raises:
        ValueError: `picks` has another shape or type.
    """
    check_int64("picks", picks, tuple(trees.tokens.shape))
    accepted = _accepted_rows(trees, picks)
    depth = torch.arange(1, trees.max_depth + 1, device=picks.device)
    on_path = accepted[:, None, :] & (trees.depths[:, None, :] == depth[:, None])
    found = on_path.any(-1)
    # A depth holds one accepted row or none: siblings carry distinct tokens.
    row = on_path.to(torch.int8).argmax(-1)
    num_accepted = found.sum(-1)
    path = torch.nn.functional.pad(torch.where(found, row, 0), (1, 0))
    last = path.gather(1, num_accepted[:, None])
    return DeviceAccepted(
        rows=torch.where(found, row, NOT_ACCEPTED),
        tokens=torch.where(found, trees.tokens.gather(1, row), NOT_ACCEPTED),
        num_accepted=num_accepted,
        correction=picks.gather(1, last)[:, 0],
    )


def _accepted_rows(trees: DeviceTrees, picks: Tensor) -> Tensor:
    """[R, B] bool: the rows whose every step from the root is the target's pick.

    What it says of padding rows has no meaning; their depth of 0 keeps them off the path.
    """
    rows = torch.arange(trees.budget, device=picks.device)
    jump = trees.parents.clamp(min=0)
    picked = (rows == 0) | (picks.gather(1, jump) == trees.tokens)
    # Pointer doubling, as in the ancestor words: log2(D) steps instead of D.
    for _ in range(trees.max_depth.bit_length()):
        picked = picked & picked.gather(1, jump)
        jump = jump.gather(1, jump)
    return picked
