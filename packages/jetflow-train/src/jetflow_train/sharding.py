"""Weights shared out over the processes by torch's FSDP2, gathered a layer at a time.

What is shared out never changes the steps: gradients are averaged as data parallelism averages
them, in the type of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal, get_args

import torch
from jetflow_core.head.layers import HeadLayer
from jetflow_core.head.model import DraftHead
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from jetflow_train.blocks import run_blocks
from jetflow_train.distributed import World
from jetflow_train.sight import Sight
from jetflow_train.step import StepFunctions, StepLosses
from jetflow_train.target import AnyTarget, FrozenTarget
from jetflow_train.target_layer import LayerWeights, TargetShape
from jetflow_train.train_config import OptimizerName

Shard = Literal["none", "head", "all"]
"""What is shared out: nothing; the head with its gradients and optimizer; the target's layers too.
"""


def check_shard(shard: Shard, world: World) -> None:
    """Looks whether ``world`` can hold what ``shard`` asks for.

    Raises:
        ValueError: it names nothing, or there is no process group.
    """
    if shard not in get_args(Shard):
        raise ValueError(f"shard {shard!r} is unknown: one of {', '.join(get_args(Shard))}")
    if shard != "none" and world.control is None:
        raise ValueError(
            f"shard {shard!r} shares weights out over processes: start them with torchrun"
        )


def check_optimizer(optimizer: OptimizerName, shard: Shard) -> None:
    """Looks whether ``optimizer`` can step over what ``shard`` leaves to each process.

    Raises:
        ValueError: it needs whole matrices.
    """
    if optimizer == "muon" and shard != "none":
        raise ValueError(
            f"--optimizer muon turns whole matrices, and --shard {shard} leaves a part of each to "
            "a process: use --optimizer adamw with it"
        )


def training_device() -> torch.device:
    """This process's device: its current GPU, or the CPU where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


class TargetLayer(nn.Module):
    """A frozen layer of the target whose weights are gathered for each call."""

    def __init__(self, weights: LayerWeights) -> None:
        super().__init__()
        for name, value in weights._asdict().items():
            parameter = None if value is None else nn.Parameter(value, requires_grad=False)
            self.register_parameter(name, parameter)

    def forward(
        self,
        run: Callable[..., Tensor],
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        sight: Sight,
        shape: TargetShape,
    ) -> Tensor:
        """``run`` of the layer's whole weights."""
        weights = LayerWeights(*(getattr(self, name) for name in LayerWeights._fields))
        return run(x, weights, cos, sin, sight, shape)


class GatheredLayer(nn.Module):
    """A layer of the head whose weights are gathered for each call."""

    def __init__(self, layer: HeadLayer, run: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self._run = run

    def forward(
        self,
        block: Tensor,
        fused: Tensor,
        rope: tuple[Tensor, Tensor],
        context_rope: tuple[Tensor, Tensor],
        visible: Tensor,
        own: Tensor,
    ) -> Tensor:
        """As ``blocks.run_block_layer``."""
        return self._run(self.layer, block, fused, rope, context_rope, visible, own)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ShardedTarget(AnyTarget):
    """A target whose layers are shared out over the processes; all of them capture together."""

    layers: tuple[TargetLayer, ...]

    def layer_output(self, index: int, x: Tensor, cos: Tensor, sin: Tensor, sight: Sight) -> Tensor:
        """Output of one layer, gathered for this call."""
        out: Tensor = self.layers[index](self.layer_fn, x, cos, sin, sight, self.shape)
        return out


def shard_target(target: FrozenTarget, world: World) -> ShardedTarget:
    """``target`` with its layers shared out over the processes; they call this together.

    Embedding, lm_head and final norm stay whole, on the training device. The layers' weights may
    lie in host memory: they go to the device one layer at a time.
    """
    mesh, device = _mesh(world), training_device()
    layers = tuple(TargetLayer(weights) for weights in target.layers)
    for layer in layers:
        _shard(layer, mesh)
    embedding = target.embedding.to(device)
    tied = target.lm_head is target.embedding
    kept = {field.name: getattr(target, field.name) for field in fields(AnyTarget)}
    moved = {name: kept[name].to(device) for name in ("final_norm", "cos", "sin")}
    lm_head = embedding if tied else target.lm_head.to(device)
    return ShardedTarget(
        **{**kept, **moved, "embedding": embedding, "lm_head": lm_head}, layers=layers
    )


def shard_losses(
    target: AnyTarget,
    head: DraftHead,
    embedding: Tensor,
    chunks: int,
    functions: StepFunctions,
    world: World,
) -> StepLosses:
    """``StepLosses`` of a head that is shared out in place; its parameters become DTensors.

    Each layer of the head is gathered for its forward and its backward pass; the rest of the head
    is gathered for the whole step. The processes call this together.
    """
    mesh = _mesh(world)
    layers = [layer for layer in head.layers if isinstance(layer, HeadLayer)]
    units = nn.ModuleList(GatheredLayer(layer, functions.head_layer) for layer in layers)
    for unit in units:
        _shard(unit, mesh)
    blocks = partial(run_blocks, layers=list(units))
    losses = StepLosses(target, head, embedding, chunks, replace(functions, blocks=blocks))
    # One root over all of them: torch then orders and overlaps what is gathered.
    losses.units = units
    losses.target_layers = nn.ModuleList(target.layers if isinstance(target, ShardedTarget) else ())
    fully_shard(losses, mesh=mesh, ignored_params=set(units.parameters()))
    return losses


def _shard(module: nn.Module, mesh: DeviceMesh) -> None:
    fully_shard(module, mesh=mesh, reshard_after_forward=True)


def _mesh(world: World) -> DeviceMesh:
    return init_device_mesh(training_device().type, (world.size,))
