"""All operations of a layer in one object: the entry point of the group ``jetflow.layer_ops``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from jetflow_kernels.ops.cache_writes import CacheWrites
from jetflow_kernels.ops.gate import silu_mul
from jetflow_kernels.ops.linear import gate_up_silu, linear
from jetflow_kernels.ops.linear_choice import Products
from jetflow_kernels.ops.norms import add_rms_norm, rms_norm
from jetflow_kernels.round.checks import can_overlap


class LayerSteps(CacheWrites):
    """The operations of a decoder layer beside its attention, on a CUDA device.

    None makes the host wait, and all can be captured in a CUDA graph; ``prepare`` is the exception,
    called ahead of time and outside. All but the products are the functions of the same name: what
    they take and refuse is said there. Products run on one stream at a time.

    Args:
        choices: what runs which product; None: nothing is known, and torch runs all of them until
            ``prepare`` has found out more.
        overlapped: whether kernels are placed while the one ahead ends and wait for it by
            themselves, where the device can do that; weights may then not be written just before.
            Changes no bits.
    """

    def __init__(self, choices: Products | None = None, *, overlapped: bool = True) -> None:
        self._choices = Products() if choices is None else choices
        self._overlapped = overlapped

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``jetflow_kernels.ops.rms_norm``.

        Args:
            x: [T, H].
            weight: [H].
            eps: what is added to the mean square.

        Returns:
            [T, H].
        """
        return rms_norm(x, weight, eps, overlapped=self._overlaps(x))

    def add_rms_norm(
        self, x: Tensor, change: Tensor, weight: Tensor, eps: float, total: Tensor
    ) -> Tensor:
        """``jetflow_kernels.ops.add_rms_norm``.

        Args:
            x: [T, H].
            change: [T, H].
            weight: [H].
            eps: what is added to the mean square.
            total: [T, H], the sum is written here.

        Returns:
            [T, H].
        """
        return add_rms_norm(x, change, weight, eps, total, overlapped=self._overlaps(x))

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """``jetflow_kernels.ops.silu_mul``.

        Args:
            gate_up: [N, 2 I].

        Returns:
            [N, I].
        """
        return silu_mul(gate_up, overlapped=self._overlaps(gate_up))

    def prepare(
        self, rows: Sequence[int], weights: Sequence[Tensor], gated: Sequence[Tensor] = ()
    ) -> None:
        """Measures what is fastest for products that will come, unless it is known.

        See ``Products.prepare``. What was measured is kept in the user's cache folder.

        Args:
            rows: numbers of rows, each with every matrix.
            weights: [out, in] each, of ``linear``.
            gated: [2 I, in] each, of ``gate_up_silu``.

        Raises:
            RuntimeError: a CUDA graph is being captured.
        """
        self._choices.prepare(rows, weights, gated)

    def products(self) -> Sequence[dict[str, Any]]:
        """What runs which product, with microseconds, of all that were prepared; for reports."""
        return self._choices.table()

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Products of rows with a matrix, by what was measured to be fastest, else by torch.

        Args:
            x: [T, in], any row stride.
            weight: [out, in] in the type of ``x``.
            bias: [out].

        Returns:
            [T, out].
        """
        choice = self._choices.choice(x, weight, gated=False)
        if choice is None:
            return F.linear(x, weight, bias)
        config, arrived = choice
        return linear(x, weight, bias, config=config, arrived=arrived, overlapped=self._overlapped)

    def gate_up_silu(self, x: Tensor, weight: Tensor) -> Tensor:
        """``silu_mul`` of ``linear``, in one launch where that was measured to be faster.

        Args:
            x: [T, in], any row stride.
            weight: [2 I, in] in the type of ``x``, the gate's rows first.

        Returns:
            [T, I].
        """
        choice = self._choices.choice(x, weight, gated=True)
        if choice is None:
            return self.silu_mul(self.linear(x, weight))
        config, arrived = choice
        return gate_up_silu(x, weight, config=config, arrived=arrived, overlapped=self._overlapped)

    def _overlaps(self, x: Tensor) -> bool:
        return self._overlapped and can_overlap(x)
