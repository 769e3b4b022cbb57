"""What ``--worker-cls`` names: our worker for the platform that vLLM runs on."""

from __future__ import annotations

from typing import Any

from vllm.platforms import current_platform


def _worker() -> Any:
    """Imported only where it runs: each needs parts of vLLM that the other has no use for."""
    if current_platform.is_cuda():
        from jetflow_serve.cuda.worker import CudaTreeWorker

        return CudaTreeWorker
    from jetflow_serve.engine.cpu_worker import CpuTreeWorker

    return CpuTreeWorker


TreeWorker = _worker()
