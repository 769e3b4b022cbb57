"""The angles of every position, computed once: positions only look them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from jetflow_core.stacks.shape import StackShape


@dataclass(frozen=True, slots=True, eq=False)
class RopeTables:
    """Cosines and sines of the angles by which the pairs of a head are turned.

    Attributes:
        cos: `[P, head_dim / 2]` float32, for the pairs `(i, i + head_dim / 2)` of a head.
        sin: Likewise.
    """

    cos: Tensor
    sin: Tensor

    @property
    def positions(self) -> int:
        """Positions that have a line."""
        return self.cos.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    """How fast each pair of a head turns with the position.

    Attributes:
        per_position: `[head_dim / 2]` float32 on the CPU, radians a position.
        factor: Of cosines and sines; only YaRN has one that is not 1.
    """

    per_position: Tensor
    factor: float = 1.0

    @classmethod
    def plain(cls, shape: StackShape) -> Frequencies:
        """Without any scaling: `theta ** (-2 i / head_dim)` for pair i."""
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
        return cls(1.0 / (shape.rope_theta**exponents))

    @classmethod
    def from_config(cls, config: Any, shape: StackShape) -> Frequencies:
        """Those of a transformers config, scaled as transformers scales them.

        Args:
            config: One that `check_stack` does not refuse.
            shape: Made from it.
        """
        kind = config.rope_parameters.get("rope_type", "default")
        if kind == "default":
            return cls.plain(shape)
        per_position, factor = ROPE_INIT_FUNCTIONS[kind](config)
        return cls(per_position.float().cpu(), float(factor))

    def tables(self, positions: int, device: torch.device | str) -> RopeTables:
        """The angles of positions `0 .. positions - 1`.

        Raises:
            ValueError: `positions` is below 1.
        """
        if positions < 1:
            raise ValueError(f"positions is {positions}, it must be at least 1")
        # On the CPU whatever the device: another device's cosine may differ in the last bit.
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self.per_position
        return RopeTables(
            (angles.cos() * self.factor).to(device), (angles.sin() * self.factor).to(device)
        )
