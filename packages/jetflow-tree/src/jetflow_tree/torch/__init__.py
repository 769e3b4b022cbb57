"""Draft trees on device tensors: batched, fixed shapes, no host synchronisation.

Everything here except the conversions (`to_trees`, `to_accepted`) runs without reading a device
value on the host, so a whole round can be captured in one CUDA graph. Needs the extra
`jetflow-tree[torch]`; importing `jetflow_tree` alone never imports torch.
"""

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ModuleNotFoundError(
        "jetflow_tree.torch needs PyTorch: install jetflow-tree[torch]", name="torch"
    )

from jetflow_tree.torch.build import best_first
from jetflow_tree.torch.convert import from_trees, stack_candidates, to_accepted, to_trees
from jetflow_tree.torch.trees import DeviceTrees
from jetflow_tree.torch.walk import DeviceAccepted, walk
from jetflow_tree.torch.words import (
    ancestor_matrix,
    ancestor_words,
    pack_words,
    positions,
    unpack_words,
)

__all__ = [
    "DeviceAccepted",
    "DeviceTrees",
    "ancestor_matrix",
    "ancestor_words",
    "best_first",
    "from_trees",
    "pack_words",
    "positions",
    "stack_candidates",
    "to_accepted",
    "to_trees",
    "unpack_words",
    "walk",
]
