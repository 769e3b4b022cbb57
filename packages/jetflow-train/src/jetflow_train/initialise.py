"""A fresh head whose layers start as the target's last ones, or as noise."""

from __future__ import annotations

from typing import Literal

import torch
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.layers import HeadLayer
from jetflow_core.head.model import DraftHead
from torch import Tensor, nn

from jetflow_train.target import FrozenTarget
from jetflow_train.target_layer import LayerWeights, TargetShape, rms_norm


def spread_taps(num_layers: int, count: int = 5) -> tuple[int, ...]:
    """``count`` layers from 1 to ``num_layers - 3``, evenly spread (1, 8, 14, 20, 27 of 30)."""
    last = max(1, num_layers - 3)
    steps = [1 + (last - 1) * i / max(1, count - 1) for i in range(count)]
    return tuple(dict.fromkeys(min(num_layers - 1, int(step + 0.5)) for step in steps))


def head_config(
    shape: TargetShape,
    *,
    num_layers: int,
    block_size: int,
    path_rank: int,
    taps: tuple[int, ...] = (),
    input_bridge: bool = False,
    path_context: bool = False,
    candidate_pool: int = 0,
    causal: bool = True,
    prefix_filled: bool = False,
) -> HeadConfig:
    """A head of the target's own width; ``taps`` () spreads five over the target.

    Raises:
        HeadConfigError: the options do not go together.
    """
    return HeadConfig(
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_layers=num_layers,
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        block_size=block_size,
        num_target_layers=shape.num_layers,
        target_layer_ids=taps or spread_taps(shape.num_layers),
        mask_token_id=None,
        rms_norm_eps=shape.rms_norm_eps,
        rope_theta=shape.rope_theta,
        max_position_embeddings=shape.max_positions,
        learned_mask=True,
        normalize_taps=True,
        input_bridge=input_bridge,
        path_rank=path_rank,
        path_context=path_context,
        candidate_pool=candidate_pool,
        causal=causal,
        prefix_filled=prefix_filled,
        depth_offset_rows=block_size,
    )


def new_head(
    target: FrozenTarget,
    config: HeadConfig,
    sample: Tensor,
    seed: int,
    *,
    init: Literal["target", "random"] = "target",
) -> DraftHead:
    """A head in fp32 on the target's device.

    Args:
        target: the target.
        config: from ``head_config``.
        sample: int64 ``[R, T]`` tokens of real text, from which the scale of the target's queries
            and keys is read: the head norms them, most targets do not.
        seed: of the parts that no target layer gives.
        init: ``target``: layers are the target's last ones, and the fusion hands them its deepest
            tap; ``random``: both are noise. What meets the target's own vocabulary (final norm,
            mask vector) is the target's in either case.

    Raises:
        ValueError: ``target`` is asked for and has fewer layers than the head.
    """
    if init == "target" and config.num_layers > target.shape.num_layers:
        raise ValueError(
            f"num_layers {config.num_layers} exceeds the target's {target.shape.num_layers}, from "
            "whose layers the head's would begin: fewer --layers, or --init random"
        )
    generator = torch.Generator().manual_seed(seed)
    head = DraftHead(config)
    with torch.no_grad():
        for module in head.modules():
            if isinstance(module, nn.Linear) and module.weight.any():
                module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
        head = head.to(device=target.device, dtype=torch.float32)
        if init == "target":
            _copy_layers(head, target, sample)
        head.norm.weight.copy_(target.final_norm)
        if config.learned_mask:
            head.mask_embedding.copy_(target.embedding.float().mean(0))
    return head


def _copy_layers(head: DraftHead, target: FrozenTarget, sample: Tensor) -> None:
    number = head.config.num_layers
    sources = target.layers[-number:]
    scales = _query_key_rms(target, sample)[-number:]
    layers = [layer for layer in head.layers if isinstance(layer, HeadLayer)]
    for layer, source, scale in zip(layers, sources, scales, strict=True):
        _copy_layer(layer, source, scale, target.shape)
    _start_fusion(head, sources)


def _start_fusion(head: DraftHead, sources: tuple[LayerWeights, ...]) -> None:
    # The deepest tap is what the copied layers used to read, so the fusion begins with it.
    hidden = head.config.hidden_size
    head.fc.weight.mul_(0.1)
    head.fc.weight[:, -hidden:] += torch.eye(hidden, device=head.fc.weight.device)
    norms = torch.stack([source.input_norm.float() for source in sources])
    head.hidden_norm.weight.copy_(norms.mean(0))


def _copy_layer(
    layer: HeadLayer, source: LayerWeights, scale: tuple[float, float], shape: TargetShape
) -> None:
    attention, key_width = layer.self_attn, shape.num_kv_heads * shape.head_dim
    q, k, v = source.qkv.split([shape.num_heads * shape.head_dim, key_width, key_width])
    for module, weight in ((attention.q_proj, q), (attention.k_proj, k), (attention.v_proj, v)):
        module.weight.copy_(weight)
    attention.o_proj.weight.copy_(source.o)
    gate, up = source.gate_up.chunk(2)
    layer.mlp.gate_proj.weight.copy_(gate)
    layer.mlp.up_proj.weight.copy_(up)
    layer.mlp.down_proj.weight.copy_(source.down)
    layer.input_layernorm.weight.copy_(source.input_norm)
    layer.post_attention_layernorm.weight.copy_(source.post_norm)
    if source.q_norm is not None and source.k_norm is not None:
        attention.q_norm.weight.copy_(source.q_norm)
        attention.k_norm.weight.copy_(source.k_norm)
    else:
        attention.q_norm.weight.fill_(scale[0])
        attention.k_norm.weight.fill_(scale[1])


def _query_key_rms(target: FrozenTarget, sample: Tensor) -> list[tuple[float, float]]:
    """Mean RMS of each layer's queries and keys on ``sample``, before rotation."""
    width = sample.shape[1]
    positions = torch.arange(width, device=target.device).expand(sample.shape)
    mask = torch.ones(width, width, dtype=torch.bool, device=target.device).tril()
    inputs, _ = target.capture(
        sample, positions, mask.expand(len(sample), -1, -1), range(target.shape.num_layers)
    )
    first = target.embedding[sample]
    states = [first, *inputs.chunk(target.shape.num_layers, dim=-1)[:-1]]
    heads, kv_heads = target.shape.num_heads, target.shape.num_kv_heads
    scales = []
    for x, w in zip(states, target.layers, strict=True):
        normed = rms_norm(x, w.input_norm, target.shape.rms_norm_eps)
        mixed = nn.functional.linear(normed, w.qkv, w.qkv_bias)
        parts = mixed.unflatten(-1, (-1, target.shape.head_dim)).float()
        rms = parts.pow(2).mean(-1).sqrt()
        scales.append(
            (float(rms[..., :heads].mean()), float(rms[..., heads : heads + kv_heads].mean()))
        )
    return scales
