"""The kernels of a GPU, which another package brings."""

from __future__ import annotations

import torch
from jetflow_core.rounds import RoundOps, round_ops_for
from jetflow_core.rounds.find import TORCH

from jetflow_serve.refusals import ServeRefused


def device_ops(device: torch.device) -> RoundOps:
    """The steps of a round on a CUDA device.

    Raises:
        ServeRefused: no installed package has kernels for them.
        RuntimeError: an installed one cannot be loaded; named.
    """
    found = round_ops_for(device)
    if found.name == TORCH:
        raise ServeRefused("trees on a GPU need jetflow-kernels, which is not installed here")
    return found.ops
