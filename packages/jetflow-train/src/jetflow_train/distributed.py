"""The processes of one run: torch's own process group, and small sums between the hosts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed as dist


@dataclass(frozen=True, slots=True)
class World:
    """This process among all processes of the run; alone without a process group.

    Attributes:
        rank: number of this process.
        size: number of processes.
        control: a group that moves host numbers and never waits for a device; None when alone.
    """

    rank: int = 0
    size: int = 1
    control: dist.ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Each of ``values`` summed over all processes, in float64."""
        if self.control is None:
            return [float(value) for value in values]
        summed = torch.tensor(list(values), dtype=torch.float64)
        dist.all_reduce(summed, group=self.control)
        return [float(value) for value in summed.tolist()]

    def wait(self) -> None:
        """Returns once every process is here."""
        self.total([0.0])


@contextmanager
def joined() -> Iterator[World]:
    """The world that torchrun describes in the environment; alone outside torchrun."""
    if "RANK" not in os.environ:
        yield World()
        return
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if torch.cuda.is_available():
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()
