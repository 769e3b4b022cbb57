"""All steps of a round in one object: the entry point of the group ``jetflow.round_ops``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from jetflow_kernels import round as steps
from jetflow_kernels.attention.backend import Backend, Version
from jetflow_kernels.attention.op import tree_attention, tree_attention_backend
from jetflow_kernels.attention.plan import Cut
from jetflow_kernels.ops.cache_writes import CacheWrites


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundSteps(CacheWrites):
    """The steps of a round on a CUDA device, for whoever runs rounds.

    No step makes the host wait, and all can be captured in a CUDA graph; the addresses that
    ``cache_pools`` copies to the device are the exception, made once and outside. Each step is the
    function of the same name: what it takes and refuses is said there.
    """

    attention: Backend = "auto"
    """What ``tree_attention`` runs."""
    cut: Cut = "by_shapes"
    """What tiles are chosen by. ``by_shapes``: a row's bits depend on the shapes of its batch, on
    none of its values. ``by_request``: not on the batch at all, which is slower."""

    depth_topk = staticmethod(steps.depth_topk)
    path_candidates = staticmethod(steps.path_candidates)
    build_tree = staticmethod(steps.build_tree)
    pack_ancestors = staticmethod(steps.pack_ancestors)
    tree_slots = staticmethod(steps.tree_slots)
    pack_trees = staticmethod(steps.pack_trees)
    advance = staticmethod(steps.advance)
    pick_argmax = staticmethod(steps.pick_argmax)
    pick_sampled = staticmethod(steps.pick_sampled)
    accept_walk = staticmethod(steps.accept_walk)
    commit_path = staticmethod(steps.commit_path)

    def cache_pools(self, pools: Sequence[Tensor]) -> steps.CachePools:
        """What ``commit_path`` wants to know of the pools of all layers; see ``CachePools.of``."""
        return steps.CachePools.of(pools)

    def tree_attention(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        page_table: Tensor,
        cu_nodes: Tensor,
        prefix_len: Tensor,
        ancestors: Tensor,
        *,
        scale: float | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """``jetflow_kernels.tree_attention`` by the version and the cut of this object.

        Args:
            q: [T, Hq, D].
            k_pool: [pages, page, Hkv, D].
            v_pool: like ``k_pool``.
            page_table: [B, max_pages] int32.
            cu_nodes: [B + 1] int32.
            prefix_len: [B] int32.
            ancestors: [T, W] int64.
            scale: factor of the scores; None: ``1 / sqrt(D)``.
            out: like ``q``: written and returned instead of a new tensor.

        Returns:
            [T, Hq, D].

        Raises:
            ValueError: see ``jetflow_kernels.tree_attention``.
            RuntimeError: likewise.
        """
        return tree_attention(
            q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors,
            scale=scale, out=out, backend=self.attention, cut=self.cut,
        )  # fmt: skip

    def attention_version(
        self,
        q: Tensor,
        k_pool: Tensor,
        v_pool: Tensor,
        page_table: Tensor,
        cu_nodes: Tensor,
        prefix_len: Tensor,
        ancestors: Tensor,
    ) -> Version:
        """Which version ``tree_attention`` runs for these arguments, for reports.

        Args:
            q: as there, like the others; values are not looked at.
            k_pool: as there.
            v_pool: as there.
            page_table: as there.
            cu_nodes: as there.
            prefix_len: as there.
            ancestors: as there.

        Raises:
            ValueError: see ``jetflow_kernels.tree_attention_backend``.
            RuntimeError: likewise.
        """
        return tree_attention_backend(
            q, k_pool, v_pool, page_table, cu_nodes, prefix_len, ancestors,
            backend=self.attention, cut=self.cut,
        )  # fmt: skip
