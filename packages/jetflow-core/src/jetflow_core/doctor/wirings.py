"""The ways in which a head can be connected to its target, the right one and likely wrong ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    mask_token: int | None = None
    """Token whose embedding fills the masked slots; None: the mask that the head is made with."""


def right_wiring(config: HeadConfig) -> Wiring:
    """The wiring that the head's config describes."""
    return Wiring(
        name="as configured",
        taps=config.target_layer_ids,
        first_slot=config.first_slot,
        causal=config.causal,
    )


def wrong_wirings(config: HeadConfig, special_tokens: Sequence[int] = ()) -> list[Wiring]:
    """One mistake each, of the kinds that are made when a head is imported or an engine written.

    Args:
        config: of the head.
        special_tokens: tokens that the target's tokenizer makes likely masks; other tokens are
            tried too. A head with a mask of its own borrows none.
    """
    right = right_wiring(config)
    wirings = [
        replace(right, name="features one row late", row_shift=-1),
        replace(right, name="features one row early", row_shift=1),
        replace(right, name="root masked", masked_root=True),
    ]
    wirings += [replace(right, name=name, taps=taps) for taps, name in _other_taps(config).items()]
    if config.block_size > 1:
        seen = "the whole block visible" if config.causal else "later slots hidden"
        wirings.append(replace(right, name=seen, causal=not config.causal))
        slot = 1 - config.first_slot
        wirings.append(replace(right, name=f"depth 1 from slot {slot}", first_slot=slot))
    for token in _other_masks(config, special_tokens):
        wirings.append(replace(right, name=f"token {token} as the mask", mask_token=token))
    return wirings


def layers_of(wirings: list[Wiring]) -> tuple[int, ...]:
    """All target layers that ``wirings`` tap, ascending."""
    return tuple(sorted({layer for wiring in wirings for layer in wiring.taps}))


def _other_taps(config: HeadConfig) -> dict[tuple[int, ...], str]:
    """Names by taps, each choice of taps once and never the one in use."""
    right = config.target_layer_ids
    named = [
        ("taps one layer lower", _moved(config, -1)),
        ("taps one layer higher", _moved(config, 1)),
        ("taps in reverse order", right[::-1]),
        *((f"taps {i} and {i + 1} swapped", _swapped(right, i - 1)) for i in range(1, len(right))),
        *((f"taps rotated by {by}", right[by:] + right[:by]) for by in range(1, len(right))),
    ]
    first = {taps: name for name, taps in reversed(named) if taps != right}
    return dict(reversed(first.items()))


def _swapped(taps: tuple[int, ...], first: int) -> tuple[int, ...]:
    """Taps ``first`` and ``first + 1`` in each other's place."""
    return (*taps[:first], taps[first + 1], taps[first], *taps[first + 2 :])


def _other_masks(config: HeadConfig, special_tokens: Sequence[int]) -> Iterator[int]:
    """Special tokens, the neighbours of the mask in use, and both ends of the vocabulary."""
    used, last = config.mask_token_id, config.vocab_size - 1
    if used is None:
        return
    for token in dict.fromkeys((*special_tokens, used - 1, used + 1, last, 0)):
        if 0 <= token <= last and token != used:
            yield token


def _moved(config: HeadConfig, by: int) -> tuple[int, ...]:
    """Taps moved by one layer, those at the edge left where they are."""
    last = config.num_target_layers - 1
    return tuple(min(max(layer + by, 0), last) for layer in config.target_layer_ids)
