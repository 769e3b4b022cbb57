"""Reading a head's config.json: the published spellings and our own; the rest is refused.

Published heads of this family (DFlash, JetSpec, NeMo, ASpec) share their tensors but spell their
options differently; every option is looked up in ``dflash_config`` first and at the top level
after. Nothing is guessed: an option that changes the result and is unknown here is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetflow_core.head.config import HeadConfig, HeadConfigError

OWN_ARCHITECTURE = "JetFlowDraftHead"
ARCHITECTURES = (
    OWN_ARCHITECTURE,
    "DFlashDraftModel",
    "Qwen3DFlashDraftModel",
    "DFlash2DraftModel",
    "JetSpecDraftModel",
)
OWN_FORMAT = 1

# Option: the values that mean "not in use". Anything else would change the head's output.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "candidate_selector": (None, False),
    "attention_conv": (None, False),
    "mlp_conv": (None, False),
    "markov_rank": (None, 0),
    "confidence_head": (None, False),
    "input_embedding_scale": (None, 1, 1.0),
    "output_multiplier": (None, 1, 1.0),
    "final_logit_softcapping": (None,),
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "quantization_config": (None,),
    "num_experts": (None, 0),
}


def parse_config(raw: Mapping[str, Any]) -> HeadConfig:
    """The description of a head from the mapping in its config.json.

    Raises:
        HeadConfigError: a needed option is absent, has an impossible value, or is one that this
            package does not run; the message names it.
    """
    options = _Options(raw)
    _check_architecture(raw)
    _refuse_unsupported(options)
    own = raw.get("jetflow") or {}
    if own and own.get("format") != OWN_FORMAT:
        raise HeadConfigError(
            f"head format {own.get('format')!r} is unknown here; this version reads {OWN_FORMAT}"
        )
    learned_mask = bool(own.get("learned_mask", False))
    hidden = options.need("hidden_size")
    target_hidden = options.get("target_hidden_size")
    if target_hidden not in (None, hidden):
        raise HeadConfigError(
            f"target_hidden_size {target_hidden} differs from the head's hidden_size {hidden}: "
            "heads with a width adapter (hidden_dim_adapter) are not supported"
        )
    heads = options.need("num_attention_heads")
    return HeadConfig(
        hidden_size=hidden,
        intermediate_size=options.need("intermediate_size"),
        num_layers=options.need("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=options.get("num_key_value_heads", heads),
        head_dim=options.get("head_dim") or hidden // heads,
        vocab_size=options.need("vocab_size"),
        block_size=options.need("block_size"),
        num_target_layers=options.need("num_target_layers"),
        target_layer_ids=tuple(options.need("target_layer_ids")),
        mask_token_id=None if learned_mask else options.need("mask_token_id"),
        rms_norm_eps=float(options.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(options),
        max_position_embeddings=options.need("max_position_embeddings"),
        causal=_causal(options),
        draft_shift=bool(options.get("draft_shift", options.get("sample_from_anchor", False))),
        learned_mask=learned_mask,
        normalize_taps=bool(own.get("normalize_taps", False)),
        path_rank=own.get("path_rank", 0),
        candidates=own.get("candidates", 16),
        depth_offset_rows=own.get("depth_offset_rows", 0),
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
            "path_rank": config.path_rank,
            "candidates": config.candidates,
            "depth_offset_rows": config.depth_offset_rows,
        },
    }


class _Options:
    """Looks an option up in ``dflash_config``, then at the top level."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        nested = raw.get("dflash_config") or {}
        if not isinstance(nested, Mapping):
            raise HeadConfigError(f"dflash_config must be a mapping, got {nested!r}")
        self._places = (nested, raw)

    def get(self, name: str, default: Any = None) -> Any:
        for place in self._places:
            if place.get(name) is not None:
                return place[name]
        return default

    def need(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise HeadConfigError(f"config.json lacks {name} (also looked for in dflash_config)")
        return value


def _check_architecture(raw: Mapping[str, Any]) -> None:
    named = raw.get("architectures") or []
    if not any(name in ARCHITECTURES for name in named):
        raise HeadConfigError(
            f"architectures {named} is no draft head known here; known: {', '.join(ARCHITECTURES)}"
        )


def _refuse_unsupported(options: _Options) -> None:
    for name, neutral in _NEUTRAL.items():
        value = options.get(name)
        if value not in neutral:
            raise HeadConfigError(f"{name}={value!r} is not supported by this version")
    if options.get("hidden_act", "silu") != "silu":
        raise HeadConfigError(f"hidden_act {options.get('hidden_act')!r} is not supported: silu")
    scaling = options.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        raise HeadConfigError(f"rope_scaling of type {kind!r} is not supported")


def _rope_theta(options: _Options) -> float:
    parameters = options.get("rope_parameters") or {}
    kind = parameters.get("rope_type", "default")
    if kind != "default":
        raise HeadConfigError(f"rope_parameters of type {kind!r} are not supported")
    return float(parameters.get("rope_theta") or options.need("rope_theta"))


def _causal(options: _Options) -> bool:
    """The in-block mask under any published name; silence means bidirectional, as in DFlash."""
    said = {
        name: bool(options.get(name))
        for name in ("causal_head", "causal", "is_causal")
        if options.get(name) is not None
    }
    if len(set(said.values())) > 1:
        raise HeadConfigError(f"the config contradicts itself about the in-block mask: {said}")
    if _sliding(options):
        said.setdefault("layer_types", True)
    return next(iter(said.values()), False)


def _sliding(options: _Options) -> bool:
    """Whether all layers call themselves sliding, which one publisher means as "causal".

    Raises:
        HeadConfigError: other kinds of layers, a mixture, or a window that would hide context.
    """
    kinds = set(options.get("layer_types") or ["full_attention"])
    if kinds == {"full_attention"}:
        return False
    window, reach = options.get("sliding_window"), options.need("max_position_embeddings")
    if kinds != {"sliding_attention"} or window is None or window < reach:
        raise HeadConfigError(
            f"layer_types {sorted(kinds)} with sliding_window {window} are not supported: "
            f"full_attention, or sliding_attention with a window of at least {reach}"
        )
    return True
