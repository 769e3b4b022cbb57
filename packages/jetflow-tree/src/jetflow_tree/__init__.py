"""Draft trees for speculative decoding: build them, mask them, accept along them.

Needs numpy only, so that an engine in any framework can use it. Device code for torch lives in
``jetflow_tree.torch`` (extra ``torch``).
"""

from jetflow_tree.accept import Accepted, lazy_walk, sample_walk, walk
from jetflow_tree.baselines import AllChildren, Chain
from jetflow_tree.build import BestFirst, TreeBuilder, best_first_paths
from jetflow_tree.candidates import Candidates
from jetflow_tree.cost import Cost, CostCurve, best_size, stop_early
from jetflow_tree.mask import (
    ancestor_matrix,
    ancestor_words,
    linked_lists,
    position_offsets,
    retrieve_indices,
    unpack_words,
)
from jetflow_tree.score import Scoring, calibrated, depth_discounted
from jetflow_tree.share import share_budget
from jetflow_tree.show import to_dot, to_mermaid, to_rich, to_text
from jetflow_tree.stats import TAU_FORMULA, AcceptanceStats
from jetflow_tree.tree import Tree

__all__ = [
    "TAU_FORMULA",
    "AcceptanceStats",
    "Accepted",
    "AllChildren",
    "BestFirst",
    "Candidates",
    "Chain",
    "Cost",
    "CostCurve",
    "Scoring",
    "Tree",
    "TreeBuilder",
    "ancestor_matrix",
    "ancestor_words",
    "best_first_paths",
    "best_size",
    "calibrated",
    "depth_discounted",
    "lazy_walk",
    "linked_lists",
    "position_offsets",
    "retrieve_indices",
    "sample_walk",
    "share_budget",
    "stop_early",
    "to_dot",
    "to_mermaid",
    "to_rich",
    "to_text",
    "unpack_words",
    "walk",
]
