"""The steps of a verify round around attention, each one op without a host wait."""

from jetflow_kernels.round.accept import AcceptedBatch, accept_walk, accept_walk_reference
from jetflow_kernels.round.advance import KeptRows, RoundLines, advance, advance_reference
from jetflow_kernels.round.ancestors import pack_ancestors, pack_ancestors_reference
from jetflow_kernels.round.argmax import pick_argmax, pick_argmax_reference
from jetflow_kernels.round.build import build_all_children, build_tree
from jetflow_kernels.round.build_reference import (
    build_all_children_reference,
    build_tree_reference,
)
from jetflow_kernels.round.cache_write import norm_rope_kv_write, norm_rope_kv_write_reference
from jetflow_kernels.round.commit import CachePools, commit_path, commit_path_reference
from jetflow_kernels.round.packed import PackedTrees, pack_trees, pack_trees_reference
from jetflow_kernels.round.path_candidates import path_candidates, path_candidates_reference
from jetflow_kernels.round.sampled import pick_sampled, pick_sampled_reference
from jetflow_kernels.round.slots import tree_slots, tree_slots_reference
from jetflow_kernels.round.topk import TopTokens, depth_topk, depth_topk_reference
from jetflow_kernels.round.trees import TreeBatch

__all__ = [
    "AcceptedBatch",
    "CachePools",
    "KeptRows",
    "PackedTrees",
    "RoundLines",
    "TopTokens",
    "TreeBatch",
    "accept_walk",
    "accept_walk_reference",
    "advance",
    "advance_reference",
    "build_all_children",
    "build_all_children_reference",
    "build_tree",
    "build_tree_reference",
    "commit_path",
    "commit_path_reference",
    "depth_topk",
    "depth_topk_reference",
    "norm_rope_kv_write",
    "norm_rope_kv_write_reference",
    "pack_ancestors",
    "pack_ancestors_reference",
    "pack_trees",
    "pack_trees_reference",
    "path_candidates",
    "path_candidates_reference",
    "pick_argmax",
    "pick_argmax_reference",
    "pick_sampled",
    "pick_sampled_reference",
    "tree_slots",
    "tree_slots_reference",
]
