"""vLLM's GPU worker with our model runner."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.logger import init_logger
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from jetflow_serve.cuda.attention import FLASH, TRITON, TreeFlashImpl, TreeTritonImpl
from jetflow_serve.cuda.limits import check_gpu
from jetflow_serve.cuda.ops import device_ops
from jetflow_serve.engine.settings import read_settings
from jetflow_serve.engine.tree_worker import TreeWorkerBase
from jetflow_serve.packed_cache import packed_pools

logger = init_logger("vllm.jetflow")


class CudaTreeWorker(TreeWorkerBase):
    """A worker on a GPU whose drafts are trees."""

    backends: ClassVar = {
        AttentionBackendEnum.FLASH_ATTN: FLASH,
        AttentionBackendEnum.TRITON_ATTN: TRITON,
    }
    attention: ClassVar = (TreeFlashImpl, TreeTritonImpl)

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        super().__init__(vllm_config, local_rank, rank, distributed_init_method, is_driver_worker)
        graphs = vllm_config.compilation_config.cudagraph_mode
        check_gpu(
            read_settings(vllm_config).options,
            mixed_graphs=graphs == CUDAGraphMode.FULL,
            nodes=vllm_config.num_speculative_tokens,
            runner_v2=bool(self.use_v2_model_runner),
        )
        # vLLM's warm-up verifies tokens that nobody drafted.
        vllm_config.kernel_config.enable_jit_warmup = False

    def _make_model_runner(self) -> Any:
        from jetflow_serve.cuda.runner import CudaTreeModelRunner

        return CudaTreeModelRunner(self.vllm_config, self.device)

    def load_model(self, *args: Any, **options: Any) -> None:
        """As vLLM's; then every layer knows the kernels of trees."""
        super().load_model(*args, **options)
        ops = device_ops(self.device)
        for layer in self._layers():
            layer.impl.ops = ops

    def compile_or_warm_up_model(self) -> Any:
        """As vLLM's, when it is known that there is a kernel for every layer."""
        versions = sorted({attention_version(layer, self.device) for layer in self._layers()})
        logger.info("Trees attend by %s.", ", ".join(versions))
        return super().compile_or_warm_up_model()

    def _layers(self) -> list[Any]:
        layers = self.vllm_config.compilation_config.static_forward_context.values()
        return [x for x in layers if isinstance(getattr(x, "impl", None), self.attention)]


def attention_version(layer: Any, device: torch.device) -> str:
    """What computes a layer's attention over trees.

    Args:
        layer: vLLM's, with its cache.
        device: where it runs.

    Raises:
        ValueError: nothing does; the message says what is allowed.
    """
    impl = layer.impl
    keys, values = packed_pools(layer.kv_cache)
    query = keys.new_empty(1, impl.num_heads, impl.head_size)
    one = torch.ones(1, dtype=torch.int32, device=device)
    starts = torch.zeros(2, dtype=torch.int32, device=device)
    version: str = impl.ops.attention_version(
        query, keys, values, one[None], starts, one, one[None].long()
    )
    return version
