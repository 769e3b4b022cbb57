"""What a head's config.json says of positions and of who sees whom, in all published spellings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetflow_core.head.config import BOUNDS
from jetflow_core.head.options import CAUSAL_NAMES, Options, section
from jetflow_core.head.values import (
    HeadConfigError,
    flag,
    known_keys,
    positive,
    shown,
    text,
    whole,
)

_ROPE_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "factor")


def read_rope_theta(options: Options) -> float:
    """Base of the rotary wave lengths.

    Raises:
        HeadConfigError: it is absent, impossible or given twice with two values, or the positions
            are scaled.
    """
    found = {"rope_theta": options.get("rope_theta")}
    for name in ("rope_parameters", "rope_scaling"):
        scaling = section({name: options.get(name)}, name)
        _refuse_scaling(name, scaling)
        found[f"{name}.rope_theta"] = scaling.get("rope_theta")
    said = {name: positive(name, value) for name, value in found.items() if value is not None}
    if not said:
        options.need("rope_theta")
    if len(set(said.values())) > 1:
        raise HeadConfigError(f"the config contradicts itself: {shown(said)}")
    return next(iter(said.values()))


def _refuse_scaling(name: str, scaling: Mapping[str, Any]) -> None:
    for spelling in ("rope_type", "type"):
        kind = scaling.get(spelling)
        if kind not in (None, "default"):
            raise HeadConfigError(f"{name} of type {shown(kind)} is not supported: default")
    known_keys(name, scaling, _ROPE_KEYS)
    for scale in ("partial_rotary_factor", "factor"):
        value = scaling.get(scale)
        if value is not None and positive(f"{name}.{scale}", value) != 1.0:
            raise HeadConfigError(f"{name}.{scale}={shown(value)} is not supported by this version")


def read_causal(options: Options, num_layers: int) -> bool:
    """The in-block mask under any published name; silence means bidirectional, as in DFlash.

    Raises:
        HeadConfigError: two spellings contradict each other, or the layers are of another kind.
    """
    said, sliding = options.one_flag(CAUSAL_NAMES), _sliding(options, num_layers)
    if sliding and said is False:
        raise HeadConfigError(
            "the config contradicts itself about the in-block mask: layer_types say "
            "sliding_attention, which is causal, and "
            f"{'/'.join(name for name in CAUSAL_NAMES if options.get(name) is not None)} is false"
        )
    return sliding or bool(said)


def _sliding(options: Options, num_layers: int) -> bool:
    """Whether all layers call themselves sliding, which one publisher means as "causal".

    Raises:
        HeadConfigError: other kinds of layers, a mixture, or a window that would hide context.
    """
    reach = options.bounded("max_position_embeddings")
    window = options.get("sliding_window")
    if window is not None:
        whole("sliding_window", window, 0, BOUNDS["max_position_embeddings"][1])
    hides = window is None or window < reach
    if options.get("use_sliding_window") is not None:
        used = flag("use_sliding_window", options.get("use_sliding_window"))
        if used and window is not None and hides:
            raise HeadConfigError(
                f"use_sliding_window with sliding_window {window} is not supported: the window "
                f"must reach {reach}"
            )
    kinds = _kinds_of_layers(options, num_layers)
    if kinds == {"full_attention"}:
        return False
    if kinds != {"sliding_attention"} or hides:
        raise HeadConfigError(
            f"layer_types {shown(sorted(kinds))} with sliding_window {window} are not supported: "
            f"full_attention, or sliding_attention with a window of at least {reach}"
        )
    return True


def _kinds_of_layers(options: Options, num_layers: int) -> set[str]:
    if options.get("layer_types") is None:
        return {"full_attention"}
    kinds = [text("layer_types", kind) for kind in options.elements("layer_types")]
    if len(kinds) != num_layers:
        raise HeadConfigError(
            f"layer_types names {len(kinds)} layers, num_hidden_layers is {num_layers}"
        )
    return set(kinds)
