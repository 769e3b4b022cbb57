"""A batch of draft trees as device tensors of one fixed shape."""

from dataclasses import dataclass

import torch
from torch import Tensor

PADDING_TOKEN = 0
"""Token of a row that holds no node: any valid vocabulary index will do, the row is never read."""

NO_PARENT = -1
"""Parent of the root and of rows that hold no node, so that neither is anybody's child."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeviceTrees:
    """R trees of at most B rows each, row 0 the root, on one device.

    Row i of request r holds a node if `i < num_nodes[r]`. The other rows are padding: token 0,
    parent -1, depth 0, score -inf. A padding row is nobody's child, and in the ancestor words it
    sees itself alone, so a softmax over its mask is never empty.
    """

    tokens: Tensor
    """[R, B] int64."""
    parents: Tensor
    """[R, B] int64: row of the parent, below the row itself; -1 at the root and in padding."""
    depths: Tensor
    """[R, B] int64: 0 at the root and in padding."""
    scores: Tensor
    """[R, B] float64 or float32: cumulative log-probability; 0 at the root, -inf in padding."""
    num_nodes: Tensor
    """[R] int64: rows that hold a node, the root included; from 1 to B."""
    valid: Tensor
    """[R] bool: False where the input was outside the contract, so that the tree is its root."""
    max_depth: int
    """No node is deeper than this: it fixes the shapes and loop counts of what reads the trees."""

    def __post_init__(self) -> None:
        """Check the shapes, which costs no read of the device."""
        if self.tokens.dim() != 2 or self.tokens.shape[1] < 1:
            raise ValueError(f"tokens must be [R, B] with B >= 1, got {list(self.tokens.shape)}")
        if self.max_depth < 0:
            raise ValueError(f"max_depth must be 0 or more, got {self.max_depth}")
        for name in ("parents", "depths", "scores"):
            check_shape(name, getattr(self, name), tuple(self.tokens.shape))
        for name in ("num_nodes", "valid"):
            check_shape(name, getattr(self, name), (self.num_requests,))

    @property
    def num_requests(self) -> int:
        """R, the number of trees."""
        return self.tokens.shape[0]

    @property
    def budget(self) -> int:
        """B, the rows of every tree, padding included."""
        return self.tokens.shape[1]

    @property
    def holds_node(self) -> Tensor:
        """[R, B] bool: which rows hold a node (the root does)."""
        rows = torch.arange(self.budget, device=self.tokens.device)
        return rows < self.num_nodes[:, None]


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless `tensor` has exactly this shape."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must be {list(shape)}, got {list(tensor.shape)}")


def check_int64(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless `tensor` is int64 and has exactly this shape."""
    check_shape(name, tensor, shape)
    if tensor.dtype != torch.int64:
        raise ValueError(f"{name} must be int64, got {tensor.dtype}")
