"""The input bridge: what every slot of a block is told of where the block begins.

Masks enter a block without a word of the text, so its first layer would have to fetch everything by
attention. With a bridge each slot's input also gets a linear map of the root's embedding and one of
the context's last fused row, which is the target's own state just before the root:
``input_j += context fused_(a-1) + root E[t_a]``. Both maps start at zero, so that a fresh bridge
changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class InputBridge(nn.Module):
    """Two square maps of the head's width."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.root = nn.Linear(hidden_size, hidden_size, bias=False)
        self.context = nn.Linear(hidden_size, hidden_size, bias=False)
        nn.init.zeros_(self.root.weight)
        nn.init.zeros_(self.context.weight)

    def forward(self, roots: Tensor, last: Tensor) -> Tensor:
        """What all slots of each block get.

        Args:
            roots: ``[R, hidden]``, embeddings of the roots.
            last: ``[R, hidden]``, the last fused row of each context; zeros without a context.

        Returns:
            ``[R, 1, hidden]``.
        """
        added: Tensor = self.root(roots) + self.context(last)
        return added.unsqueeze(1)


def last_rows(fused: Tensor, ends: Tensor) -> Tensor:
    """The row before each of ``ends``.

    Args:
        fused: ``[T, hidden]`` of one context.
        ends: int64 ``[R]``: rows of the context that are seen.

    Returns:
        ``[R, hidden]``; zeros where none is seen.
    """
    return torch.where(ends[:, None] > 0, fused[(ends - 1).clamp(min=0)], 0.0)
