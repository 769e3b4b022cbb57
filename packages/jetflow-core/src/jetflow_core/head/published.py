"""Reading a head's config.json: the published spellings and our own; the rest is refused.

Published heads of this family (DFlash, JetSpec, NeMo, ASpec) share their tensors but spell their
options differently (``options`` and ``positions`` know how). Nothing is guessed: a value of the
wrong kind, and an option that changes the result and is unknown here, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetflow_core.head.config import BOUNDS, HeadConfig
from jetflow_core.head.options import SHIFT_NAMES, Options, section
from jetflow_core.head.positions import read_causal, read_rope_theta
from jetflow_core.head.values import (
    HeadConfigError,
    known_keys,
    listed,
    shown,
    text,
    whole,
)

OWN_ARCHITECTURE = "JetFlowDraftHead"
ARCHITECTURES = (
    OWN_ARCHITECTURE,
    "DFlashDraftModel",
    "Qwen3DFlashDraftModel",
    "DFlash2DraftModel",
    "JetSpecDraftModel",
)
OWN_FORMAT = 1
_OWN_KEYS = (
    "format", "learned_mask", "normalize_taps", "input_bridge", "path_rank", "path_context",
    "candidates", "candidate_pool", "prefix_filled", "depth_offset_rows", "score_temperatures",
    # what a head says of its making: see ``checkpoint.HeadInfo``
    "target", "tokenizer_sha256", "top1_by_depth", "provenance",
)  # fmt: skip


def parse_config(raw: Mapping[str, Any]) -> HeadConfig:
    """The description of a head from the mapping in its config.json.

    Raises:
        HeadConfigError: a needed option is absent, has an impossible value, or is one that this
            package does not run; the message names it.
    """
    if not names_a_head(raw):
        raise HeadConfigError(
            f"architectures {shown(raw.get('architectures'))} is no draft head known here; "
            f"known: {', '.join(ARCHITECTURES)}"
        )
    options, own = Options(raw), own_section(raw)
    _refuse_other_widths(options)
    layers = options.bounded("num_hidden_layers", "num_layers")
    heads = options.bounded("num_attention_heads", "num_heads")
    # The kinds and ranges of all that is only passed on here are checked in ``HeadConfig``.
    learned_mask = own.get("learned_mask", False)
    return HeadConfig(
        hidden_size=options.need("hidden_size"),
        intermediate_size=options.need("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=_kv_heads(options, heads),
        head_dim=_head_dim(options, heads),
        vocab_size=options.need("vocab_size"),
        block_size=options.need("block_size"),
        num_target_layers=options.need("num_target_layers"),
        target_layer_ids=options.elements("target_layer_ids"),
        mask_token_id=(
            options.get("mask_token_id") if learned_mask is True else options.need("mask_token_id")
        ),
        rms_norm_eps=1e-6 if (eps := options.get("rms_norm_eps")) is None else eps,
        rope_theta=read_rope_theta(options),
        max_position_embeddings=options.need("max_position_embeddings"),
        causal=read_causal(options, layers),
        draft_shift=bool(options.one_flag(SHIFT_NAMES)),
        learned_mask=learned_mask,
        normalize_taps=own.get("normalize_taps", False),
        input_bridge=own.get("input_bridge", False),
        path_rank=own.get("path_rank", 0),
        path_context=own.get("path_context", False),
        candidates=own.get("candidates", 16),
        candidate_pool=own.get("candidate_pool", 0),
        prefix_filled=own.get("prefix_filled", False),
        depth_offset_rows=own.get("depth_offset_rows", 0),
        score_temperatures=_pairs(own, "score_temperatures"),
    )


def _pairs(own: Mapping[str, Any], name: str) -> tuple[tuple[Any, ...], ...]:
    """Lists in a list as tuples; what is in them is checked in ``HeadConfig``."""
    return tuple(tuple(listed(f"{name}: each", pair)) for pair in listed(name, own.get(name, [])))


def names_a_head(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of a draft head, by its ``architectures``.

    Raises:
        HeadConfigError: ``architectures`` is no list of names.
    """
    named = raw.get("architectures")
    names = () if named is None else listed("architectures", named)
    return any(text("architectures", name) in ARCHITECTURES for name in names)


def own_section(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is there of the ``jetflow`` section, empty in an imported head.

    Raises:
        HeadConfigError: it is no mapping, of another format, or holds a key unknown here.
    """
    own = section(raw, "jetflow")
    if not own:
        return {}
    if type(own.get("format")) is not int or own["format"] != OWN_FORMAT:
        raise HeadConfigError(
            f"head format {shown(own.get('format'))} is unknown here; "
            f"this version reads {OWN_FORMAT}"
        )
    known_keys("jetflow", own, _OWN_KEYS)
    return {name: value for name, value in own.items() if value is not None}


def _kv_heads(options: Options, heads: int) -> int:
    name = "num_key_value_heads"
    return heads if options.get(name) is None else options.bounded(name, "num_kv_heads")


def _head_dim(options: Options, heads: int) -> int:
    if options.get("head_dim") is not None:
        return options.bounded("head_dim")
    hidden = options.bounded("hidden_size")
    if hidden % heads:
        raise HeadConfigError(
            f"config.json lacks head_dim, and hidden_size {hidden} is no multiple of "
            f"num_attention_heads {heads}"
        )
    return hidden // heads


def _refuse_other_widths(options: Options) -> None:
    for name, like, needs in (
        ("target_hidden_size", "hidden_size", "a width adapter (hidden_dim_adapter)"),
        ("draft_vocab_size", "vocab_size", "a vocabulary of their own"),
    ):
        value = options.get(name)
        if value is not None and whole(name, value, *BOUNDS[like]) != options.need(like):
            raise HeadConfigError(
                f"{name} {value} differs from {like} {shown(options.need(like))}: "
                f"heads with {needs} are not supported"
            )


def write_config(config: HeadConfig) -> dict[str, Any]:
    """The mapping that ``parse_config`` reads back to an equal description."""
    return {
        "architectures": [OWN_ARCHITECTURE],
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": config.max_position_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "layer_types": ["full_attention"] * config.num_layers,
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "dflash_config": {
            "target_layer_ids": list(config.target_layer_ids),
            "mask_token_id": config.mask_token_id,
            "causal_head": config.causal,
            "causal": config.causal,
            "draft_shift": config.draft_shift,
        },
        "jetflow": {
            "format": OWN_FORMAT,
            "learned_mask": config.learned_mask,
            "normalize_taps": config.normalize_taps,
            "input_bridge": config.input_bridge,
            "path_rank": config.path_rank,
            "path_context": config.path_context,
            "candidates": config.candidates,
            "candidate_pool": config.candidate_pool,
            # Earlier versions read a head without it.
            **({"prefix_filled": True} if config.prefix_filled else {}),
            "depth_offset_rows": config.depth_offset_rows,
            "score_temperatures": [list(pair) for pair in config.score_temperatures],
        },
    }
