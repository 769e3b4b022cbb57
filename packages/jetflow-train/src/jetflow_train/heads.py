"""The head that a run begins with: a fresh one, or the weights of a stored one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from jetflow_core.fit import check_sizes
from jetflow_core.head.checkpoint import load_head, read_config
from jetflow_core.head.config import HeadConfig, HeadConfigError
from jetflow_core.head.model import DraftHead

from jetflow_train.files import sha256_file
from jetflow_train.initialise import head_config, new_head
from jetflow_train.objectives import NEEDS_A_TRAINED_HEAD, ObjectiveName
from jetflow_train.settings import HEAD_FIELDS
from jetflow_train.shards import Corpus
from jetflow_train.target import FrozenTarget
from jetflow_train.target_layer import TargetShape


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadChoice:
    """The shape of a new head; everything else follows the target.

    Raises:
        ValueError: on construction, naming the field and its range.
    """

    num_layers: int = 3
    block_size: int = 16
    input_bridge: bool = True
    """Every slot reads the root and the context's last row at once."""
    path_rank: int = 128
    path_context: bool = True
    """The path term reads its depth's hidden state; without a path term this says nothing."""
    candidate_pool: int = 64
    """Best tokens of a depth among which its candidates are chosen, likewise."""
    causal: bool = True
    prefix_filled: bool = False
    """Some of its blocks will begin with true tokens."""
    taps: tuple[int, ...] = ()
    """Layers of the target, from 0; () spreads five over it."""
    init: Literal["target", "random"] = "target"

    def __post_init__(self) -> None:
        leasts = (("num_layers", 1), ("block_size", 2), ("path_rank", 0), ("candidate_pool", 0))
        for name, least in leasts:
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be >= {least}, got {getattr(self, name)}")

    def config(self, shape: TargetShape) -> HeadConfig:
        """The description of such a head for a target.

        Raises:
            HeadConfigError: the options do not go together, or with the target.
        """
        return head_config(
            shape,
            num_layers=self.num_layers,
            block_size=self.block_size,
            input_bridge=self.input_bridge,
            path_rank=self.path_rank,
            path_context=self.path_context and self.path_rank > 0,
            candidate_pool=self.candidate_pool if self.path_rank else 0,
            causal=self.causal,
            prefix_filled=self.prefix_filled,
            taps=self.taps,
        )


def start_head(target: FrozenTarget, corpus: Corpus, choice: HeadChoice, seed: int) -> DraftHead:
    """A fresh head of the chosen shape, scaled on the first sequences of the corpus."""
    width = min(128, len(corpus.tokens), target.shape.max_positions)
    rows = min(16, len(corpus.tokens) // width)
    sample = torch.from_numpy(corpus.tokens[: rows * width].astype("int64")).view(rows, width)
    config = choice.config(target.shape)
    return new_head(target, config, sample.to(target.device), seed, init=choice.init)


def stored_head(folder: Path, target: FrozenTarget, *, prefix_filled: bool = False) -> DraftHead:
    """The head in ``folder``, in fp32 on the target's device and ready to be trained.

    How sharply its scores are read is forgotten: that was fitted to weights which now change.

    Args:
        folder: of the head.
        target: that it was trained for.
        prefix_filled: some of its blocks will begin with true tokens.

    Raises:
        HeadLoadError: it cannot be read.
        HeadMismatch: it was made for a target of other sizes.
    """
    head = load_head(folder, device=target.device).head
    check_sizes(
        head.config,
        folder,
        hidden_size=target.shape.hidden_size,
        vocab_size=target.shape.vocab_size,
        num_layers=target.shape.num_layers,
    )
    head.config = replace(
        head.config,
        score_temperatures=(),
        prefix_filled=prefix_filled or head.config.prefix_filled,
    )
    return head.train().requires_grad_(True)


def check_stored(
    folder: Path, given: Mapping[str, Any], init: str | None, prefix_fill: float = 0.0
) -> None:
    """Compares the head options that were ``given`` with the head in ``folder``, by its config.

    Raises:
        HeadLoadError: there is no head.
        ValueError: naming the option that differs, with both values.
    """
    config, _ = read_config(folder)
    if init is not None:
        raise ValueError(f"--init {init} goes with a fresh head, not with --start-head {folder}")
    if prefix_fill:
        try:
            replace(config, prefix_filled=True)
        except HeadConfigError as error:
            raise ValueError(
                f"--prefix-fill {prefix_fill} does not fit the head at {folder}: {error}"
            ) from error
    for name, value in given.items():
        found = getattr(config, HEAD_FIELDS[name])
        if value != found:
            raise ValueError(
                f"--{name.replace('_', '-')} {_shown(value)} does not fit the head at {folder}, "
                f"which has {_shown(found)}: leave the option out, or start with another head"
            )


def check_objective(loss: ObjectiveName, *, fresh: bool) -> None:
    """Refuses a loss that a fresh head does not learn from.

    Raises:
        ValueError: naming the loss, and what to do.
    """
    if fresh and loss in NEEDS_A_TRAINED_HEAD:
        raise ValueError(
            f"--loss {loss} has hardly any gradient where a head is wrong, and a fresh one is: "
            "start from a trained head with --start-head"
        )


def weights_sha256(folder: Path) -> dict[str, str]:
    """Checksum of each file of weights of the head in ``folder``."""
    return {file.name: sha256_file(file) for file in sorted(folder.glob("*.safetensors"))}


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
