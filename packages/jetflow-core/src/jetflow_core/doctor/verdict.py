"""From agreement to a verdict: pure functions of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["ok", "unclear", "weak head", "wiring fault"]

# A wrong wiring is better only if it is so by more than chance, and on most texts. Taps that are
# one layer off lose little: a tenth of the agreement of the demonstration head.
_CLEARLY, _ERRORS = 0.02, 3.0
# Texts differ from the ones of the training's evaluation, but not by so much.
_FAR_BELOW = 0.65
COMPARED_DEPTHS = 3
"""Depths whose agreement is compared: most of a round is decided there."""
_FEWEST_TOKENS = 1.3
# A head with a wrong mask or rotated taps still reached 1.7 tokens a round. Less than one drafted
# token that is kept a round proves nothing of a head that does not say what it should reach.
_PROVING_TOKENS = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Agreement:
    """How often one wiring's best tokens were the target's."""

    name: str
    hits: tuple[NDArray[np.bool_], ...]
    """For each text ``[roots, depth]``."""
    known: tuple[NDArray[np.bool_], ...]
    """For each text ``[roots, depth]``: whether the text reaches so far."""

    @property
    def by_depth(self) -> tuple[float, ...]:
        """Share of roots at which each depth's best token was right, where it can be told."""
        hits = sum(np.sum(h & k, axis=0) for h, k in zip(self.hits, self.known, strict=True))
        known = sum(np.sum(k, axis=0) for k in self.known)
        return tuple((np.asarray(hits) / np.maximum(np.asarray(known), 1)).tolist())

    @property
    def share(self) -> float:
        """Mean of ``by_depth`` over the compared depths."""
        return float(np.mean(self.by_depth[:COMPARED_DEPTHS]))

    @property
    def chain(self) -> float:
        """Tokens a round if the best tokens were drafted as a chain, mean over all roots."""
        right = np.concatenate([(h & k) for h, k in zip(self.hits, self.known, strict=True)])
        return 1.0 + float(np.cumprod(right, axis=1).sum(axis=1).mean())

    def share_by_root(self) -> tuple[NDArray[np.float64], ...]:
        """For each text the share of the compared depths that are right, at every root."""
        shares = []
        for hits, known in zip(self.hits, self.known, strict=True):
            hits, known = hits[:, :COMPARED_DEPTHS], known[:, :COMPARED_DEPTHS]
            shares.append((hits & known).sum(axis=1) / np.maximum(known.sum(axis=1), 1))
        return tuple(shares)

    def gains_over(self, other: Agreement) -> list[NDArray[np.float64]]:
        """``share_by_root`` less that of ``other``, for each text that both were tried on.

        A wiring that is far worse was tried on the first texts only.
        """
        pairs = zip(self.share_by_root(), other.share_by_root(), strict=False)
        return [one - two for one, two in pairs]

    def gain_over(self, other: Agreement) -> NDArray[np.float64]:
        """``gains_over`` of all texts in one row."""
        return np.concatenate(self.gains_over(other))


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that a verdict rests on."""

    right: Agreement
    """The wiring that the config describes."""
    wrong: tuple[Agreement, ...]
    stored: tuple[float, ...]
    """``by_depth`` at training time; empty if the head does not say."""
    deviation: float
    """Share of roots and depths at which the engine's drafter differs from the replay."""
    rounding: float
    """Deviation that rounding in the type of the models can cause."""
    copying: float
    """Tokens a round of prompt lookup on the same texts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be thought of the head, and why."""

    kind: Kind
    reasons: tuple[str, ...]


def judge(evidence: Evidence) -> Verdict:
    """The verdict; a proof of a wiring fault comes before any talk of weakness.

    "unclear" is a head that gains something, but so little that a weak head and a wrongly wired
    one would look alike, and that does not say what it reached at training time.
    """
    faults = (*_drafter_fault(evidence), *_better_wirings(evidence), *_far_below_stored(evidence))
    if faults:
        return Verdict("wiring fault", faults)
    weak = _weakness(evidence)
    if weak:
        return Verdict("weak head", weak)
    unclear = _untold(evidence)
    if unclear:
        return Verdict("unclear", unclear)
    return Verdict("ok", (_fits(evidence),))


def _drafter_fault(evidence: Evidence) -> tuple[str, ...]:
    if evidence.deviation <= evidence.rounding:
        return ()
    return (
        f"the engine's drafter differs from the head replayed beside it in "
        f"{evidence.deviation:.1%} of its best tokens: it is fed or run wrongly",
    )


def _better_wirings(evidence: Evidence) -> tuple[str, ...]:
    right = evidence.right
    return tuple(
        f"the head agrees better with the target under a wiring that should be wrong: "
        f"{other.name} {other.share:.3f}, {right.name} {right.share:.3f}"
        for other in sorted(evidence.wrong, key=lambda wiring: -wiring.share)
        if _is_better(other, right, max(_FEWEST_TOKENS, evidence.copying))
    )


def _is_better(other: Agreement, right: Agreement, needed: float) -> bool:
    # Of many wirings one is always the luckiest, but it does not make an untrained head draft; nor
    # does one under which the head repeats a token of a text that goes round in circles.
    if other.chain < needed:
        return False
    gains = other.gains_over(right)
    every = np.concatenate(gains)
    error = float(every.std()) / np.sqrt(len(every))
    wins, losses = (sum(sign * gain.mean() > 0 for gain in gains) for sign in (1, -1))
    on_most_texts = 2 * wins >= len(gains) and wins >= 3 * losses
    return bool(every.mean() >= max(_CLEARLY, _ERRORS * error)) and on_most_texts


def _far_below_stored(evidence: Evidence) -> tuple[str, ...]:
    if not evidence.stored:
        return ()
    found, stored = _found_and_stored(evidence)
    if found >= _FAR_BELOW * stored:
        return ()
    return (
        f"agreement is far below the one stored at training time: {found:.3f} here, "
        f"{stored:.3f} then (depths 1 to {_common_depths(evidence)})",
    )


def _common_depths(evidence: Evidence) -> int:
    return min(COMPARED_DEPTHS, len(evidence.stored), len(evidence.right.by_depth))


def _found_and_stored(evidence: Evidence) -> tuple[float, float]:
    depths = _common_depths(evidence)
    found, stored = evidence.right.by_depth[:depths], evidence.stored[:depths]
    return float(np.mean(found)), float(np.mean(stored))


def _weakness(evidence: Evidence) -> tuple[str, ...]:
    chain, needed = evidence.right.chain, max(_FEWEST_TOKENS, evidence.copying)
    if chain >= needed:
        return ()
    reason = (
        f"a chain of its best tokens gives {chain:.2f} tokens a round; copying from the text "
        f"itself gives {evidence.copying:.2f}"
    )
    if evidence.stored:
        found, stored = _found_and_stored(evidence)
        return (reason, f"it was as weak at training time: {stored:.3f} then, {found:.3f} here")
    return (
        reason,
        "nothing is stored to compare with, and no wiring that was tried is better: a wrong one "
        "that was not tried (its mask, its weights) would look the same",
    )


def _untold(evidence: Evidence) -> tuple[str, ...]:
    chain = evidence.right.chain
    if evidence.stored or chain >= _PROVING_TOKENS:
        return ()
    return (
        f"a chain of its best tokens gives {chain:.2f} tokens a round, less than the "
        f"{_PROVING_TOKENS:.1f} that a head must reach to be called ok by that alone",
        "no acceptance stored: cannot tell weak from wrongly wired",
        f"none of the {len(evidence.wrong)} other wirings that were tried is better",
    )


def _fits(evidence: Evidence) -> str:
    chain = f"a chain of its best tokens gives {evidence.right.chain:.2f} tokens a round"
    if not evidence.stored:
        return f"{chain}; nothing is stored to compare with"
    found, stored = _found_and_stored(evidence)
    return f"{chain}; agreement {found:.3f} here, {stored:.3f} at training time"
