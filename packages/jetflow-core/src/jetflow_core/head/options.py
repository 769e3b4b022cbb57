"""Where a head's options stand in its config.json, and which of them are refused by name.

Publishers write an option into ``dflash_config`` or at the top level. The top level is a Hugging
Face config, full of keys that concern nobody here; those that would change the head's output are
listed below. ``dflash_config`` describes nothing but the head: there every unknown key is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetflow_core.head.config import BOUNDS
from jetflow_core.head.values import (
    HeadConfigError,
    flag,
    known_keys,
    listed,
    mapping,
    shown,
    whole,
)

CAUSAL_NAMES = ("causal_head", "causal", "is_causal")
SHIFT_NAMES = ("draft_shift", "sample_from_anchor")

_OFF, _NONE, _ONE, _ON = (None, False), (None, 0), (None, 1, 1.0), (None, True)
# Option: the values that mean "not in use". Anything else would change the head's output.
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "hidden_act": (None, "silu"),
    "hidden_activation": (None, "silu"),
    # what other heads of this family have besides the layers
    "candidate_selector": _OFF,
    "attention_conv": _OFF,
    "mlp_conv": _OFF,
    "markov_rank": (*_NONE, False),
    "confidence_head": _OFF,
    "fc_layernorm": _OFF,
    # biases
    "attention_bias": _OFF,
    "attention_out_bias": _OFF,
    "attn_bias": _OFF,
    "mlp_bias": _OFF,
    "o_proj_bias": _OFF,
    "qkv_bias": _OFF,
    "use_bias": _OFF,
    "use_qkv_bias": _OFF,
    # scales
    "attention_multiplier": (None,),
    "attn_logit_softcapping": (None,),
    "clip_qkv": (None,),
    "embedding_multiplier": _ONE,
    "final_logit_softcapping": (None,),
    "input_embedding_scale": _ONE,
    "logit_scale": _ONE,
    "logits_scaling": _ONE,
    "output_multiplier": _ONE,
    "query_pre_attn_scalar": (None,),
    "residual_multiplier": _ONE,
    # norms and positions
    "no_rope_layers": (None,),
    "partial_rotary_factor": _ONE,
    "qk_norm": _ON,
    "rope_interleave": _OFF,
    "rotary_pct": _ONE,
    "use_qk_norm": _ON,
    # weights of another form
    "n_routed_experts": _NONE,
    "num_experts": (*_NONE, False),
    "num_local_experts": _NONE,
    "quantization_config": (None,),
}
_READ = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps", "max_position_embeddings",
    "rope_theta", "rope_parameters", "rope_scaling", "layer_types", "sliding_window",
    "use_sliding_window", "block_size", "num_target_layers", "target_layer_ids", "mask_token_id",
    "target_hidden_size", "draft_vocab_size", *CAUSAL_NAMES, *SHIFT_NAMES,
)  # fmt: skip


class Options:
    """Looks options up; null means absent.

    Raises:
        HeadConfigError: on construction, for an option that is not supported, an unknown one in
            ``dflash_config``, or one that is given twice with two values.
    """

    def __init__(self, raw: Mapping[str, Any]) -> None:
        nested = section(raw, "dflash_config")
        known_keys("dflash_config", nested, {*_READ, *_NEUTRAL})
        for place in (nested, raw):
            _refuse_unsupported(place)
        for name in nested:
            _check_agreement(name, nested[name], raw.get(name))
        self._places = (nested, raw)

    def get(self, name: str) -> Any:
        """The option's value, None where it is absent."""
        return next((p[name] for p in self._places if p.get(name) is not None), None)

    def need(self, name: str) -> Any:
        """The option's value.

        Raises:
            HeadConfigError: it is absent.
        """
        value = self.get(name)
        if value is None:
            raise HeadConfigError(f"config.json lacks {name} (also looked for in dflash_config)")
        return value

    def bounded(self, name: str, field: str | None = None) -> int:
        """The option's whole number, in the bounds of ``field`` (default: of the same name).

        Raises:
            HeadConfigError: it is absent or impossible.
        """
        return whole(name, self.need(name), *BOUNDS[field or name])

    def one_flag(self, names: tuple[str, ...]) -> bool | None:
        """What any of several names of one flag says; None if none is there.

        Raises:
            HeadConfigError: a value is neither true nor false, or two of them differ.
        """
        found = {name: self.get(name) for name in names}
        said = {name: flag(name, value) for name, value in found.items() if value is not None}
        if len(set(said.values())) > 1:
            raise HeadConfigError(f"the config contradicts itself: {shown(said)}")
        return next(iter(said.values()), None)

    def elements(self, name: str) -> tuple[Any, ...]:
        """The option's list.

        Raises:
            HeadConfigError: it is absent or no list.
        """
        return listed(name, self.need(name))


def section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping inside of ``raw``, empty where it is absent or null.

    Raises:
        HeadConfigError: it is no mapping.
    """
    value = raw.get(name)
    return {} if value is None else mapping(name, value)


def _check_agreement(name: str, nested: object, top: object) -> None:
    if nested is not None and top is not None and nested != top:
        raise HeadConfigError(
            f"the config contradicts itself about {name}: {shown(nested)} in dflash_config, "
            f"{shown(top)} at the top level"
        )


def _refuse_unsupported(place: Mapping[str, Any]) -> None:
    for name in _NEUTRAL.keys() & place.keys():
        value = place[name]
        # By type too: 0 == False and 1 == True.
        if not any(type(value) is type(off) and value == off for off in _NEUTRAL[name]):
            raise HeadConfigError(f"{name}={shown(value)} is not supported by this version")
