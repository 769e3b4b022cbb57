"""What a decoder stack asks of a device: the operations of a layer beside its attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor


class LayerOps(Protocol):
    """The operations of a layer over packed rows, stateless and of fixed shapes.

    Every one can be captured in a CUDA graph where the implementation is meant for a GPU: no
    result has a shape that depends on values, and nothing waits for the device. `TorchOps` is the
    reference.
    """

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`[T, out]`: the one place where a product is chosen by the shapes it has.

        Args:
            x: `[T, in]`, any row stride.
            weight: `[out, in]` in the type of `x`, contiguous.
            bias: `[out]`.
        """
        ...

    def gate_up_silu(self, x: Tensor, weight: Tensor) -> Tensor:
        """`[T, I]`: `silu_mul` of `linear`, rounded where those two round.

        Args:
            x: `[T, in]`, any row stride.
            weight: `[2 I, in]` in the type of `x`, contiguous, the gate's rows first.
        """
        ...

    def prepare(
        self, rows: Sequence[int], weights: Sequence[Tensor], gated: Sequence[Tensor] = ()
    ) -> None:
        """Told of products that will come, ahead of time and outside of any capture.

        Whoever can run a product in several ways finds out here which is fastest; products that
        were not told of are right all the same.

        Args:
            rows: Numbers of rows, each with every matrix.
            weights: `[out, in]` each, of `linear`; as they are from now on.
            gated: `[2 I, in]` each, of `gate_up_silu`; likewise.
        """
        ...

    def products(self) -> Sequence[Mapping[str, Any]]:
        """What runs each of the products that were told of, for reports, as plain JSON."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`[T, H]`: rows over their root mean square, rounded to their type, times `weight`.

        Args:
            x: `[T, H]`, any row stride.
            weight: `[H]` in the type of `x`.
            eps: What is added to the mean square.
        """
        ...

    def add_rms_norm(
        self, x: Tensor, change: Tensor, weight: Tensor, eps: float, total: Tensor
    ) -> Tensor:
        """`rms_norm` of `x + change`, a sum that is kept as well.

        Args:
            x: `[T, H]`, any row stride.
            change: `[T, H]`, contiguous.
            weight: `[H]` in the type of `x`.
            eps: What is added to the mean square.
            total: `[T, H]` in the type of `x`, any row stride: the sum is written here, rounded,
                and the norm is that of the rounded sum. May be `x` itself, exactly.

        Returns:
            `[T, H]`, the normed rows.
        """
        ...

    def norm_rope_kv_write(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos: Tensor,
        sin: Tensor,
        slots: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        *,
        q_weight: Tensor | None,
        k_weight: Tensor | None,
        eps: float,
    ) -> Tensor:
        """Norms and turns queries and keys, and writes keys and values to the cache.

        Args:
            qkv: `[T, (Hq + 2 Hkv) * D]`: all query heads, all key heads, all value heads.
            positions: `[T]` int32 or int64. One outside the tables turns queries and keys of its
                row into NaN.
            cos: `[P, D / 2]` float32: the cosines of each position's angles, for the pairs
                `(i, i + D / 2)` of a head.
            sin: Likewise.
            slots: `[T]` int64: page times page size plus the row in the page. Rows with a slot
                below 0 or past the last page are not written. Slots that are written differ.
            k_pool: `[pages, page, Hkv, D]` in the type of `qkv`, changed in place.
            v_pool: Likewise.
            q_weight: `[D]`, weight of the norm of each query head; None: no norms.
            k_weight: Likewise; there if and only if `q_weight` is.
            eps: What the norms add to the mean square.

        Returns:
            `[T, Hq, D]`, the queries.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """`[N, I]`: SiLU of the first half of each row of `gate_up` `[N, 2 I]` times the second."""
        ...


class Attend(Protocol):
    """The attention of one pass: whose the rows are and what they see is the caller's business."""

    def __call__(self, layer: int, q: Tensor) -> Tensor:
        """Attend over the keys and values of one layer, those of this pass included.

        Args:
            layer: Which layer; its keys and values of this pass were just written.
            q: `[T, Hq, D]`, normed and turned.

        Returns:
            `[T, Hq, D]`; rows that are padding hold finite values.
        """
        ...
