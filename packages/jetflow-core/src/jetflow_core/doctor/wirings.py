"""The ways in which a head can be connected to its target, the right one and likely wrong ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jetflow_core.head.config import HeadConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Wiring:
    """One way to connect a head."""

    name: str
    taps: tuple[int, ...]
    """Target layers, in the order in which their outputs are joined."""
    row_shift: int = 0
    """Context row i carries the features of token i + row_shift."""
    first_slot: int
    """The block's slot that predicts depth 1."""
    causal: bool
    """Whether a slot sees only the slots before it."""
    masked_root: bool = False
    """Whether the block begins with a mask in place of the root."""


def right_wiring(config: HeadConfig) -> Wiring:
    """The wiring that the head's config describes."""
    return Wiring(
        name="as configured",
        taps=config.target_layer_ids,
        first_slot=config.first_slot,
        causal=config.causal,
    )


def wrong_wirings(config: HeadConfig) -> list[Wiring]:
    """One mistake each, of the kinds that are made when a head is imported or an engine written."""
    right = right_wiring(config)
    wirings = [
        replace(right, name="features one row late", row_shift=-1),
        replace(right, name="features one row early", row_shift=1),
        replace(right, name="root masked", masked_root=True),
    ]
    for name, taps in (
        ("taps one layer lower", _moved(config, -1)),
        ("taps one layer higher", _moved(config, 1)),
        ("taps in reverse order", right.taps[::-1]),
    ):
        if taps != right.taps:
            wirings.append(replace(right, name=name, taps=taps))
    if config.block_size > 1:
        seen = "the whole block visible" if config.causal else "later slots hidden"
        wirings.append(replace(right, name=seen, causal=not config.causal))
        slot = 1 - config.first_slot
        wirings.append(replace(right, name=f"depth 1 from slot {slot}", first_slot=slot))
    return wirings


def layers_of(wirings: list[Wiring]) -> tuple[int, ...]:
    """All target layers that ``wirings`` tap, ascending."""
    return tuple(sorted({layer for wiring in wirings for layer in wiring.taps}))


def _moved(config: HeadConfig, by: int) -> tuple[int, ...]:
    """Taps moved by one layer, those at the edge left where they are."""
    last = config.num_target_layers - 1
    return tuple(min(max(layer + by, 0), last) for layer in config.target_layer_ids)
