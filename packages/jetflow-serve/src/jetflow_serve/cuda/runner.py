"""vLLM's model runner V2 on a GPU, with trees."""

from __future__ import annotations

from typing import ClassVar

from jetflow_serve.cuda.state import CudaTreeModelState
from jetflow_serve.v2.runner import TreeModelRunner
from jetflow_serve.v2.state import TreeModelState


class CudaTreeModelRunner(TreeModelRunner):
    """A model runner on a GPU whose drafts are trees."""

    state_cls: ClassVar[type[TreeModelState]] = CudaTreeModelState
