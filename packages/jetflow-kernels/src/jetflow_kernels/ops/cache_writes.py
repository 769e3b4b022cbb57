"""The step between a projection and its attention, as layers and rounds both offer it."""

from __future__ import annotations

from torch import Tensor

from jetflow_kernels.round.cache_write import norm_rope_kv_write
from jetflow_kernels.round.checks import can_overlap


class CacheWrites:
    """Writes to the cache; who inherits it may say when kernels are placed early."""

    __slots__ = ()

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
        q_weight: Tensor | None = None,
        k_weight: Tensor | None = None,
        eps: float = 1e-6,
    ) -> Tensor:
        """``jetflow_kernels.round.norm_rope_kv_write``, placed early where that can be.

        Args:
            qkv: [T, (Hq + 2 Hkv) * D].
            positions: [T].
            cos: [P, D / 2].
            sin: [P, D / 2].
            slots: [T].
            k_pool: [pages, page, Hkv, D], changed in place.
            v_pool: likewise.
            q_weight: [D], or None.
            k_weight: [D], or None.
            eps: what is added to the mean square.

        Returns:
            [T, Hq, D].
        """
        return norm_rope_kv_write(
            *(qkv, positions, cos, sin, slots, k_pool, v_pool),
            q_weight=q_weight, k_weight=k_weight, eps=eps, overlapped=self._overlaps(qkv),
        )  # fmt: skip

    def _overlaps(self, x: Tensor) -> bool:
        return can_overlap(x)
