"""What a draft head proposes: K candidate tokens a depth, and how likely each one is.

This is the contract between the packages. A head fills it, a builder reads it, and nothing else
about the head is needed to grow a tree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jetflow_tree.whole import check_count

# Log-probabilities often come from float32 or bfloat16 softmaxes, whose rows sum to 1 roughly.
_SUM_TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """K candidate tokens for each of D depths with their conditional log-probabilities.

    The arrays are copied, converted and made read-only, so a caller may reuse its buffers.

    Examples:
        >>> two = Candidates.marginal([[5, 9], [3, 4]], [[-0.1, -2.4], [-0.1, -2.4]])
        >>> two.depth, two.width, two.path_conditioned
        (2, 2, False)
    """

    tokens: NDArray[np.int64]
    """[D, K] token ids, distinct within a depth, not negative."""
    log_probs: NDArray[np.float64]
    """[D, P, K] with P == 1 (the parent does not matter) or P == K.

    ``log_probs[d, a, b]`` is the log-probability, in nats, of candidate b at depth d + 1 when its
    parent is candidate a of depth d. At d == 0 the only parent is the root and row 0 is read.
    No value is above 0; -inf says "never a node"; what the exponentials of a row lack to 1 is the
    rest bucket: every token that is not a candidate.
    """

    def __post_init__(self) -> None:
        tokens = _as_tokens(self.tokens)
        # The sum copies, and it turns -0.0 into 0.0, so that no score can be a negative zero.
        log_probs = np.asarray(self.log_probs, dtype=np.float64) + 0.0
        _check_shapes(tokens, log_probs)
        _check_tokens(tokens)
        _check_log_probs(log_probs)
        tokens.setflags(write=False)
        log_probs.setflags(write=False)
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "log_probs", log_probs)

    @classmethod
    def marginal(cls, tokens: ArrayLike, log_probs: ArrayLike) -> Candidates:
        """Candidates whose log-probabilities do not depend on the parent.

        Args:
            tokens: [D, K] integer token ids.
            log_probs: [D, K] log-probabilities in nats.

        Returns:
            Candidates with a table of shape [D, 1, K].

        Raises:
            ValueError: If a shape, a token or a log-probability is out of range.
        """
        table = np.asarray(log_probs, dtype=np.float64)
        if table.ndim != 2:
            raise ValueError(f"marginal log_probs must have shape [D, K], got {table.shape}")
        return cls(np.asarray(tokens), table[:, None, :])

    @classmethod
    def from_logits(cls, logits: ArrayLike, width: int) -> Candidates:
        """The ``width`` likeliest tokens of each depth, from logits over the whole vocabulary.

        Equal logits are ordered by token id. A width above the vocabulary is clamped to it.

        Args:
            logits: [D, V] scores of any scale, one row a depth; -inf forbids a token.
            width: Candidates a depth, at least 1.

        Returns:
            Marginal candidates of width ``min(width, V)``, best first in each depth.

        Raises:
            ValueError: If width is below 1, a logit is NaN or +inf, or a row is all -inf.
        """
        scores = np.asarray(logits, dtype=np.float64)
        if scores.ndim != 2 or scores.shape[1] < 1:
            raise ValueError(f"logits must have shape [D, V] with V >= 1, got {scores.shape}")
        check_count("width", width)
        if np.isnan(scores).any() or np.isposinf(scores).any():
            bad = np.flatnonzero((np.isnan(scores) | np.isposinf(scores)).any(axis=1))
            raise ValueError(f"logits of depth {int(bad[0]) + 1} hold NaN or +inf")
        best = np.argsort(-scores, axis=1, kind="stable")[:, :width]
        peak = np.take_along_axis(scores, best[:, :1], axis=1)
        if np.isneginf(peak).any():
            depth = int(np.flatnonzero(np.isneginf(peak))[0]) + 1
            raise ValueError(f"logits of depth {depth} are all -inf")
        # Below the peak first: a peak of -1e300 would swallow the logarithm. Where even the
        # difference overflows, it is -inf, as it should be.
        with np.errstate(over="ignore"):
            below = scores - peak
        log_mass = np.log(np.exp(below).sum(axis=1, keepdims=True))
        return cls.marginal(best, np.take_along_axis(below, best, axis=1) - log_mass)

    @property
    def depth(self) -> int:
        """D, the number of depths."""
        return int(self.tokens.shape[0])

    @property
    def width(self) -> int:
        """K, the number of candidates a depth."""
        return int(self.tokens.shape[1])

    @property
    def path_conditioned(self) -> bool:
        """Whether the log-probabilities may depend on the parent (P == K, K above 1)."""
        return bool(self.log_probs.shape[1] > 1)

    def truncate(self, depth: int) -> Candidates:
        """The first ``depth`` depths.

        Raises:
            ValueError: If depth is negative or above the depths there are.
        """
        if not 0 <= depth <= self.depth:
            raise ValueError(f"asked for depth {depth}, but the candidates have 0..{self.depth}")
        return Candidates(self.tokens[:depth], self.log_probs[:depth])

    def with_log_probs(self, log_probs: ArrayLike) -> Candidates:
        """The same tokens under another [D, P, K] table (what a scoring returns)."""
        return Candidates(self.tokens, np.asarray(log_probs, dtype=np.float64))

    def rest(self) -> NDArray[np.float64]:
        """Log mass of the rest bucket, the tokens that are no candidate.

        Returns:
            [D, P] float64, in nats; -inf where the candidates take all of the mass.

        Raises:
            ValueError: If a row sums to clearly more than 1 (it is not a distribution).
        """
        mass = np.exp(self.log_probs).sum(axis=2)
        if mass.size and mass.max() > 1.0 + _SUM_TOLERANCE:
            d, a = (int(i) for i in np.argwhere(mass > 1.0 + _SUM_TOLERANCE)[0])
            raise ValueError(
                f"log_probs[{d}, {a}] sum to {mass[d, a]:.6g} as probabilities, above 1"
            )
        missing = np.maximum(1.0 - mass, 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(missing), dtype=np.float64)


def _as_tokens(tokens: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(tokens)
    if array.dtype.kind not in "iu":
        raise ValueError(f"tokens must be integers, got dtype {array.dtype}")
    return np.array(array, dtype=np.int64)


def _check_shapes(tokens: NDArray[np.int64], log_probs: NDArray[np.float64]) -> None:
    if tokens.ndim != 2 or log_probs.ndim != 3:
        raise ValueError(
            f"tokens must be [D, K] and log_probs [D, P, K], got {tokens.shape}, {log_probs.shape}"
        )
    depth, width = tokens.shape
    if depth and not width:
        raise ValueError(f"every depth needs at least 1 candidate, got tokens {tokens.shape}")
    if log_probs.shape not in ((depth, 1, width), (depth, width, width)):
        raise ValueError(
            f"log_probs must be [{depth}, 1, {width}] or [{depth}, {width}, {width}] "
            f"for tokens [{depth}, {width}], got {log_probs.shape}"
        )


def _check_tokens(tokens: NDArray[np.int64]) -> None:
    if not tokens.size:
        return
    ordered = np.sort(tokens, axis=1)
    if ordered[:, 0].min() < 0:
        raise ValueError(f"tokens must not be negative, got {int(tokens.min())}")
    twice = ordered[:, 1:] == ordered[:, :-1]
    if twice.any():
        d, k = (int(i) for i in np.argwhere(twice)[0])
        raise ValueError(f"token {int(ordered[d, k])} occurs twice at depth {d + 1}")


def _check_log_probs(log_probs: NDArray[np.float64]) -> None:
    # max() is NaN if any value is, and one comparison then catches both faults.
    if not log_probs.size or log_probs.max() <= 0.0:
        return
    bad = np.isnan(log_probs) | (log_probs > 0.0)
    d, a, b = (int(i) for i in np.argwhere(bad)[0])
    value = float(log_probs[d, a, b])
    raise ValueError(f"log_probs[{d}, {a}, {b}] must be a number at most 0, got {value}")
