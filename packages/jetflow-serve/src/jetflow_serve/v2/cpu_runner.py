"""Model Runner V2 on a CPU, its kernels in Triton's interpreter: of use for tests only."""

from __future__ import annotations

from vllm.v1.worker.cpu.model_runner import CPUModelRunner

from jetflow_serve.v2.runner import TreeModelRunner


class CpuTreeModelRunner(TreeModelRunner, CPUModelRunner):
    """A CPU model runner V2 whose drafts are trees."""
