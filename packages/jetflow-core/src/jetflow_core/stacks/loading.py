"""Stacks from checkpoints, from transformers models, and of random weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from jetflow_core.dtypes import default_dtype
from jetflow_core.loading import TargetLoadError, check_sizes, load_config, load_model, one_line
from jetflow_core.stacks.fusing import fused_weights
from jetflow_core.stacks.ops import LayerOps
from jetflow_core.stacks.random_weights import random_weights
from jetflow_core.stacks.rope import Frequencies
from jetflow_core.stacks.shape import StackShape
from jetflow_core.stacks.stack import DecoderStack, checked_taps


def load_stack(
    source: str | Path,
    *,
    taps: Sequence[int] = (),
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    context: int | None = None,
    ops: LayerOps | None = None,
) -> DecoderStack:
    """The stack of a checkpoint, refused before its weights are read if it cannot be one.

    Each layer goes to the device as soon as it is fused, and the copy that was read is dropped.

    Args:
        source: Folder of a checkpoint, or its name on the hub.
        taps: Layers whose outputs make the features, each at most once.
        device: Where it runs.
        dtype: Type of weights, pools and logits; None: `default_dtype(device)`.
        context: Longest text, in tokens; None: as long as the model's own.
        ops: Operations of the layers; None: those of plain torch.

    Raises:
        UnsupportedTargetError: a stack would get a model of this kind wrong.
        TargetLoadError: nothing loadable at `source`; the message says why in one line.
        ValueError: a tap is no layer of the model, or `context` is longer than its own.
    """
    dtype = default_dtype(device) if dtype is None else dtype
    config = load_config(source)
    with one_line(source):
        check_sizes(config)
        shape = StackShape.from_config(config)
    checked_taps(taps, shape.num_layers)
    _checked_context(context, shape)
    model = load_model(source, config, dtype=dtype)
    layers = _handed_over(model.base_model)
    stack = _assembled(model, layers, device, dtype, taps=taps, context=context, ops=ops)
    _check_finite(stack, source)
    return stack


def stack_of_model(
    model: Any,
    *,
    taps: Sequence[int] = (),
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    context: int | None = None,
    ops: LayerOps | None = None,
) -> DecoderStack:
    """The stack of a transformers causal LM, which stays as it is.

    Args:
        model: The model.
        taps: As in `load_stack`.
        device: As there.
        dtype: As there; None: the model's own.
        context: As there.
        ops: As there.

    Raises:
        UnsupportedTargetError: a stack would get a model of this kind wrong.
        ValueError: a tap is no layer of the model, or `context` is longer than its own.
    """
    dtype = model.dtype if dtype is None else dtype
    layers = iter(model.base_model.layers)
    return _assembled(model, layers, device, dtype, taps=taps, context=context, ops=ops)


def random_stack(
    shape: StackShape,
    *,
    taps: Sequence[int] = (),
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    context: int | None = None,
    ops: LayerOps | None = None,
    seed: int = 0,
) -> DecoderStack:
    """A stack of random weights, which ends no answer by itself.

    Args:
        shape: Its sizes, such as `named_shape("qwen3-8b")`.
        taps: As in `load_stack`.
        device: As there.
        dtype: As there.
        context: As there.
        ops: As there.
        seed: Of the weights; another device draws other numbers.

    Raises:
        ValueError: a tap is no layer of the shape, or `context` is longer than its own.
    """
    dtype = default_dtype(device) if dtype is None else dtype
    checked_taps(taps, shape.num_layers)
    rope = Frequencies.plain(shape).tables(_checked_context(context, shape), device)
    weights = random_weights(shape, device=device, dtype=dtype, seed=seed)
    return DecoderStack(shape, weights, rope, ops=ops, taps=taps)


def _assembled(
    model: Any,
    layers: Iterable[Any],
    device: torch.device | str,
    dtype: torch.dtype,
    *,
    taps: Sequence[int],
    context: int | None,
    ops: LayerOps | None,
) -> DecoderStack:
    shape = StackShape.from_config(model.config)
    checked_taps(taps, shape.num_layers)
    positions = _checked_context(context, shape)
    return DecoderStack(
        shape,
        fused_weights(model, layers, shape, device=device, dtype=dtype),
        Frequencies.from_config(model.config, shape).tables(positions, device),
        ops=ops,
        taps=taps,
        eos_token_ids=_end_tokens(model),
    )


def _checked_context(context: int | None, shape: StackShape) -> int:
    if context is None:
        return shape.max_positions
    if not 1 <= context <= shape.max_positions:
        raise ValueError(f"context is {context}, it must be 1 to {shape.max_positions}")
    return context


def _handed_over(base: Any) -> Iterator[Any]:
    """The layers of a model one by one, each forgotten by the model as it is taken."""
    for index in range(len(base.layers)):
        layer, base.layers[index] = base.layers[index], nn.Identity()
        yield layer


def _check_finite(stack: DecoderStack, source: str | Path) -> None:
    # Seen here, or the drafter that shares these matrices would be blamed for their values.
    for name, weight in (("input embeddings", stack.embed_tokens), ("lm_head", stack.lm_head)):
        if not bool(weight.isfinite().all()):
            raise TargetLoadError(
                f"cannot load a target from {str(source)!r}: its {name} hold values that are not "
                "finite"
            )


def _end_tokens(model: Any) -> tuple[int, ...]:
    ids = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = model.config.eos_token_id if ids is None else ids
    return () if ids is None else tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)
