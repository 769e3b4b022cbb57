"""Whether a head belongs to a target: sizes, type and vocabulary, before anything runs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from jetflow_core.head.checkpoint import HeadInfo, LoadedHead
from jetflow_core.head.config import HeadConfig
from jetflow_core.target import Target


class HeadMismatch(ValueError):
    """The head was made for another target; the message holds both values."""


class Vocabulary(Protocol):
    """The part of a tokenizer that a fingerprint needs."""

    def get_vocab(self) -> Mapping[str, int]:
        """Token strings and their ids."""


def tokenizer_fingerprint(tokenizer: Vocabulary) -> str:
    """SHA-256 of the vocabulary in order of id; the same for every version of the libraries."""
    ordered = sorted((index, token) for token, index in tokenizer.get_vocab().items())
    text = "\n".join(f"{index}\t{token}" for index, token in ordered)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_taps(head: LoadedHead, target: Target) -> None:
    """Compares the layers whose outputs the head reads with those that the target hands out.

    Raises:
        HeadMismatch: other layers, or another order; with both.
    """
    wanted, found = head.config.target_layer_ids, target.taps
    if wanted != found:
        raise HeadMismatch(
            f"the head at {head.path} reads the target's layers {list(wanted)} in this order; "
            f"this target is tapped at {list(found)}"
        )


def check_fit(head: LoadedHead, target: Target) -> None:
    """Compares what the head says of its target with the target at hand, its taps left out.

    Raises:
        HeadMismatch: naming what differs, with both values.
    """
    check_sizes(
        head.config,
        head.path,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_layers=target.num_layers,
    )
    weight = next(head.head.parameters())
    if (weight.dtype, weight.device) != (target.dtype, target.device):
        raise HeadMismatch(
            f"the head at {head.path} was loaded as {weight.dtype} on {weight.device}; "
            f"this target is {target.dtype} on {target.device}"
        )
    if head.info.tokenizer_sha256 is not None and target.tokenizer_source is not None:
        check_vocabulary(head.info, head.path, target.tokenizer)


def check_sizes(
    config: HeadConfig, path: Path, *, hidden_size: int, vocab_size: int, num_layers: int
) -> None:
    """Compares the sizes that the head at ``path`` was made for with a target's.

    Raises:
        HeadMismatch: naming what differs, with both values.
    """
    pairs = (
        ("hidden size", config.hidden_size, hidden_size),
        ("vocabulary", config.vocab_size, vocab_size),
        ("number of layers", config.num_target_layers, num_layers),
    )
    for what, wanted, found in pairs:
        if wanted != found:
            raise HeadMismatch(
                f"the head at {path} was made for a target whose {what} is {wanted}; "
                f"this target's is {found}"
            )


def check_vocabulary(info: HeadInfo, path: Path, tokenizer: Vocabulary) -> None:
    """Compares the vocabulary that the head at ``path`` was made for, if it says, with another.

    Raises:
        HeadMismatch: they differ; with both fingerprints.
    """
    if info.tokenizer_sha256 is None:
        return
    found = tokenizer_fingerprint(tokenizer)
    if info.tokenizer_sha256 != found:
        raise HeadMismatch(
            f"the head at {path} was made for a tokenizer with fingerprint "
            f"{info.tokenizer_sha256[:12]}; this target's is {found[:12]}"
        )
