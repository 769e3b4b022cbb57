"""What is measured: a checkpoint with its head, or random weights of a shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from jetflow_core.bench.engine.acceptance import Trace
from jetflow_core.bench.engine.model import HeadModel, head_model
from jetflow_core.bench.engine.prompted import prompt_tokens, random_tokens
from jetflow_core.bench.engine.settings import EngineSettings
from jetflow_core.defaults import default_head, default_target, is_default_target
from jetflow_core.dtypes import default_dtype
from jetflow_core.embedded import EMBEDDED_NAME
from jetflow_core.head.checkpoint import HeadInfo, LoadedHead, load_head, read_config
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.model import DraftHead
from jetflow_core.loading import load_config
from jetflow_core.stacks import (
    DecoderStack,
    LayerBackend,
    StackShape,
    layer_ops_for,
    load_stack,
    named_shape,
    random_stack,
)

_TAPS = 5
_SPARE = 3
"""Rounds that may be under way behind the last one that counts, and one."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Subject:
    """A target as a stack, its head, and the prompts that it is given."""

    name: str
    stack: DecoderStack
    """Tapped as the head wants it."""
    layers: LayerBackend
    """What runs its layers."""
    head: LoadedHead | None
    depth: int
    """Depths that are drafted; 0 without a head."""
    model: HeadModel | None
    """The imposed scores; None: everything is the subject's own."""
    prompts: tuple[tuple[int, ...], ...]
    """Token ids; with an imposed acceptance those of one run."""
    new_tokens: int
    """Most tokens of an answer."""
    endless: bool
    """Whether answers only end by their length: random weights."""

    @property
    def plain(self) -> DecoderStack:
        """The same weights without taps: plain decoding pays for no head."""
        stack = self.stack
        return DecoderStack(
            stack.shape, stack.weights, stack.rope, ops=stack.ops, eos_token_ids=stack.eos_token_ids
        )


def random_subject(
    settings: EngineSettings, trace: Trace | None, shape: StackShape | None = None
) -> Subject:
    """Random weights of the settings' shape.

    Args:
        settings: with a shape.
        trace: what is to be accepted; None: only plain decoding is measured.
        shape: sizes that take the named ones' place.

    Raises:
        ValueError: the run does not fit the shape or the trace, before any weight is made.
    """
    shape = named_shape(settings.shape or "") if shape is None else shape
    depth = 0 if trace is None else settings.depth or trace.depth
    new_tokens = (settings.rounds + _SPARE) * (depth + 1)
    context = settings.context + new_tokens
    if context > shape.max_positions:
        raise ValueError(
            f"context {settings.context} and {settings.rounds} rounds of up to {depth + 1} tokens "
            f"need {context} positions, {settings.shape} has {shape.max_positions}"
        )
    config = None if trace is None else _head_config(shape, settings, depth)
    model = (
        None
        if trace is None or config is None
        else head_model(trace, depth=depth, width=min(config.candidates, shape.vocab_size))
    )
    layers, dtype = layer_ops_for(settings.device), _dtype(settings)
    stack = random_stack(
        shape,
        taps=() if config is None else config.target_layer_ids,
        device=settings.device,
        dtype=dtype,
        context=context,
        ops=layers.ops,
        seed=settings.seed,
    )
    return Subject(
        name=f"{settings.shape}, random weights",
        stack=stack,
        layers=layers,
        head=None if config is None else random_head(config, stack, settings.seed),
        depth=depth,
        model=model,
        prompts=random_tokens(settings, shape.vocab_size),
        new_tokens=new_tokens,
        endless=True,
    )


def real_subject(settings: EngineSettings) -> Subject:
    """A checkpoint with its head and prompts.

    Raises:
        ValueError: something cannot be loaded or does not fit; named.
    """
    folder: str | Path = default_target() if settings.target is None else settings.target
    if not Path(folder).is_dir():
        raise ValueError(f"target {folder}: no such folder")
    path = settings.head
    if path is None and settings.drafted:
        if not is_default_target(settings.target):
            raise ValueError("budgets above 1 need a head: this target has no default one")
        path = str(default_head())
    head_config = None if path is None else read_config(Path(path))[0]
    depth = _real_depth(settings, head_config)
    shape = StackShape.from_config(load_config(folder))
    prompts = prompt_tokens(settings, folder, shape.max_positions)
    longest = max(map(len, prompts)) + settings.max_new_tokens
    layers, dtype = layer_ops_for(settings.device), _dtype(settings)
    stack = load_stack(
        folder,
        taps=() if head_config is None else head_config.target_layer_ids,
        device=settings.device,
        dtype=dtype,
        context=min(longest, shape.max_positions),
        ops=layers.ops,
    )
    return Subject(
        name=EMBEDDED_NAME if is_default_target(settings.target) else Path(folder).name,
        stack=stack,
        layers=layers,
        head=None if path is None else load_head(path, dtype=dtype, device=settings.device),
        depth=depth,
        model=None,
        prompts=prompts,
        new_tokens=settings.max_new_tokens,
        endless=False,
    )


def _real_depth(settings: EngineSettings, config: HeadConfig | None) -> int:
    deepest = 0 if config is None else config.max_depth
    if settings.depth is not None and settings.depth > deepest:
        raise ValueError(f"depth {settings.depth} is out of range: the head goes to {deepest}")
    return deepest if settings.depth is None else settings.depth


def _dtype(settings: EngineSettings) -> torch.dtype:
    if settings.dtype is None:
        return default_dtype(settings.device)
    found: torch.dtype = getattr(torch, settings.dtype)
    return found


def _head_config(shape: StackShape, settings: EngineSettings, depth: int) -> HeadConfig:
    """A head of the target's own layers, as published ones are."""
    return HeadConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_layers=settings.head_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        block_size=depth + 1,
        num_target_layers=shape.num_layers,
        target_layer_ids=_spread_taps(shape.num_layers),
        mask_token_id=0,
        max_position_embeddings=shape.max_positions,
        path_rank=settings.path_rank,
    )


def _spread_taps(layers: int) -> tuple[int, ...]:
    """Up to five layers from the second to the third from the end."""
    first, last = min(1, layers - 1), max(layers - 3, 0)
    steps = [first + (last - first) * place / (_TAPS - 1) for place in range(_TAPS)]
    return tuple(sorted({max(round(step), 0) for step in steps}))


def random_head(config: HeadConfig, stack: DecoderStack, seed: int) -> LoadedHead:
    """A head of random weights for a stack, in its type and on its device."""
    with torch.device(stack.device):
        head = DraftHead(config).to(stack.dtype)
    generator = torch.Generator(stack.device).manual_seed(seed + 1)
    for parameter in head.parameters():
        if parameter.dim() > 1:
            size = parameter.shape[-1] ** -0.5
            parameter.data.normal_(0.0, size, generator=generator)
    return LoadedHead(
        head=head.eval().requires_grad_(False), info=HeadInfo(), path=Path("random weights")
    )
