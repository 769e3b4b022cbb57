"""vLLM's CPU worker with our model runner."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.worker.cpu_worker import CPUWorker

from jetflow_serve.engine.attention import NAME, TreeAttentionImpl
from jetflow_serve.engine.tree_worker import TreeWorkerBase


class CpuTreeWorker(TreeWorkerBase, CPUWorker):
    """A worker on a CPU whose drafts are trees."""

    # The only backend that a CPU takes.
    backends: ClassVar = {AttentionBackendEnum.CPU_ATTN: NAME}
    attention: ClassVar = (TreeAttentionImpl,)

    def init_device(self) -> None:
        """As vLLM's, with a model runner of ours."""
        super().init_device()
        runner = _runner_class(self.use_v2_model_runner)
        self.model_runner = runner(self.vllm_config, torch.device("cpu"))


def _runner_class(version_2: bool) -> Any:
    """Imported only when it runs: each needs parts of vLLM that the other does without."""
    if version_2:
        from jetflow_serve.v2.runner import TreeModelRunner as RunnerV2

        return RunnerV2
    from jetflow_serve.v1.runner import TreeModelRunner as RunnerV1

    return RunnerV1
