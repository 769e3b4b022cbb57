"""What a step with trees knows on the device: who sees whom, and where accepted rows go."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from vllm.config.compilation import CUDAGraphMode

from jetflow_serve.cuda.ops import device_ops
from jetflow_serve.leading_rows import (
    WORD_BITS,
    LeadingRows,
    count_leading,
    leading_words,
    words_for,
)
from jetflow_serve.packed_cache import packed_pools
from jetflow_serve.stage import paths
from jetflow_serve.v2.state import TreeModelState


class CudaTreeModelState(TreeModelState):
    """vLLM's state of a decoder on a GPU, with trees.

    What attention reads lies in tensors that stay where they are, so that a graph of the verify
    pass reads the newest trees.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ops = device_ops(self.device)
        self._words = words_for(1 + self.vllm_config.num_speculative_tokens)
        shape = (self.max_num_tokens, self._words)
        self._ancestors = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._prefix_len = torch.zeros(self.max_num_reqs, dtype=torch.int32, device=self.device)

    def use_caches(self, group: int, caches: list[Tensor]) -> None:
        """As the base class; their addresses are told to the device at the first move."""
        super().use_caches(group, caches)
        self._pools: Any = None

    def attach(self, metadata: dict[str, Any], input_batch: Any, cudagraph_mode: Any) -> None:
        """Tells the attention of every layer which rows are its own to compute."""
        leading = self._leading(input_batch, cudagraph_mode == CUDAGraphMode.FULL)
        for layer in metadata.values():
            layer.leading = leading

    def _leading(self, batch: Any, whole: bool) -> LeadingRows:
        """The first requests of a batch; all of them, with the padding, for a graph."""
        shared = self.shared
        count = count_leading(shared.scheduled, self._words * WORD_BITS)
        scheduled, staged = shared.scheduled[:count], shared.staged[:count]
        words = torch.from_numpy(leading_words(scheduled, staged, self._words))
        self._ancestors[: len(words)] = words
        requests = batch.num_reqs_after_padding if whole else count
        rows = batch.num_tokens_after_padding if whole else len(words)
        starts = batch.query_start_loc[: requests + 1]
        prefix = self._prefix_len[:requests]
        # What a graph is captured with may be shorter than its rows.
        torch.sub(batch.seq_lens[:requests], starts.diff(), out=prefix).clamp_(min=0)
        return LeadingRows(rows, starts, prefix, self._ancestors[:rows])

    def move(self, pairs: list[tuple[int, int]]) -> None:
        """As the base class; all layers at once, request by request behind their contexts."""
        shared = self.shared
        rows = torch.from_numpy(paths(shared.staged, shared.kept)).to(self.device)
        table = self._table[: len(rows)]
        prefix = torch.tensor(shared.contexts, dtype=torch.int32).to(self.device)
        # Features of all rows, none of them wanted.
        nothing = torch.empty(len(rows), max(shared.scheduled), 0, device=self.device)
        self._ops.commit_path(self._cache(), table, prefix, rows, nothing)

    def _cache(self) -> Any:
        """The target's caches as ``commit_path`` knows them."""
        if self._pools is None:
            pools = [pool for cache in self.caches for pool in packed_pools(cache)]
            self._pools = self._ops.cache_pools(pools)
        return self._pools
