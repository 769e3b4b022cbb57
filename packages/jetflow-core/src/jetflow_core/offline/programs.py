"""Programs over static buffers, captured once as CUDA graphs where there is a CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor


class Programs:
    """Runs each program, from its second run on as a replay.

    Args:
        device: where the programs' tensors are; only on a CUDA device anything is captured.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    def run(
        self, key: Hashable, program: Callable[[], None], changes: Sequence[Tensor] = ()
    ) -> None:
        """Run ``program`` once.

        Args:
            key: names the program; the same key is always the same program.
            program: reads and writes tensors that stay where they are.
            changes: the tensors after whose change the program would do something else.
        """
        if self._device.type != "cuda":
            program()
            return
        with torch.cuda.device(self._device):
            if key not in self._graphs:
                self._graphs[key] = self._captured(program, changes)
            self._graphs[key].replay()

    def _captured(
        self, program: Callable[[], None], changes: Sequence[Tensor]
    ) -> torch.cuda.CUDAGraph:
        # It is tried first, since what is compiled at the first run cannot be captured; the try
        # must leave no trace.
        before = [tensor.clone() for tensor in changes]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            program()
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, kept in zip(changes, before, strict=True):
            tensor.copy_(kept)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            program()
        return graph
