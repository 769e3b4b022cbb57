"""What a run needs, told from shapes before it starts: memory, and the length of an epoch.

Numbers of weights are exact and so are the bytes that hold them. What a step needs besides is an
estimate of the largest tensors that live at one time when every operation writes its result;
compiled parts fuse operations and need less.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jetflow_core.head.config import HeadConfig

from jetflow_train.sharding import Shard
from jetflow_train.shards import Corpus
from jetflow_train.target import FrozenTarget
from jetflow_train.train_config import OptimizerName, TrainConfig

FP32 = 4
# Tensors of one chunk's loss rows by the vocabulary, in fp32, at the fullest moment: the target's
# distribution, the base, and four that a loss writes on its way; with a path term also the joint
# logits and the base's gradient.
_LOGIT_TENSORS, _PATH_LOGIT_TENSORS = 6, 8
# Scores of blocks by context in the layer that is worked on: what comes in and what goes out.
_SCORE_TENSORS = 2


def head_parameters(config: HeadConfig) -> int:
    """Number of weights of a head."""
    return sum(rows * columns for rows, columns in _matrices(config))


def _matrices(config: HeadConfig) -> list[tuple[int, int]]:
    """The shape of every parameter of a head; vectors have one row."""
    hidden, rank = config.hidden_size, config.path_rank
    found = [(hidden, config.feature_size), (1, hidden), (1, hidden)]
    found += _layer(config) * config.num_layers
    if config.learned_mask:
        found.append((1, hidden))
    if config.depth_offset_rows:
        found.append((config.depth_offset_rows, hidden))
    if config.input_bridge:
        found += [(hidden, hidden)] * 2
    if rank:
        found += [(rank, hidden), (config.vocab_size, rank)]
    if rank and config.path_context:
        found.append((rank, hidden))
    return found


def _layer(config: HeadConfig) -> list[tuple[int, int]]:
    """The shapes of one layer."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return [
        *((query, hidden), (key, hidden), (key, hidden), (hidden, query)),
        *((1, config.head_dim), (1, config.head_dim), (1, hidden), (1, hidden)),
        *((inner, hidden), (inner, hidden), (hidden, inner)),
    ]


def optimizer_bytes(config: HeadConfig, optimizer: OptimizerName) -> int:
    """Bytes of the optimizer's state.

    AdamW's is two fp32 numbers a weight, and a step count a parameter tensor; Muon's one number.
    """
    shapes, turned = _matrices(config), _muon_matrices(config) if optimizer == "muon" else []
    whole = FP32 * (2 * head_parameters(config) + len(shapes))
    return whole - FP32 * sum(rows * columns + 1 for rows, columns in turned)


def _muon_matrices(config: HeadConfig) -> list[tuple[int, int]]:
    """Those of ``optimizer.muon_parameters``."""
    layers = [each for each in _layer(config) if each[0] > 1]
    return [(config.hidden_size, config.feature_size), *layers * config.num_layers]


def target_bytes(target: FrozenTarget, *, layer_parts: int = 1) -> int:
    """Bytes of the target's weights, a tied lm_head counted once.

    Of its layers each process holds one of ``layer_parts`` equal parts.
    """
    whole = (target.embedding, target.lm_head, target.final_norm, target.cos, target.sin)
    kept = {each.data_ptr(): each.nbytes for each in whole}
    layers = sum(each.nbytes for layer in target.layers for each in layer if each is not None)
    return sum(kept.values()) + -(-layers // layer_parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepBytes:
    """The largest tensors of one piece of a step on one device, in bytes; an estimate."""

    features: int
    """What the target hands over, and what the head's fusion makes of it."""
    attention: int
    """Scores of every block over its whole row, kept by each layer for the gradient."""
    activations: int
    """What the layers of the head keep of their blocks besides."""
    logits: int
    """One chunk of the loss over the vocabulary."""


def step_bytes(
    config: HeadConfig, train: TrainConfig, *, processes: int = 1, narrow: int = FP32
) -> StepBytes:
    """What one step needs besides weights, gradients and optimizer.

    Args:
        config: the head.
        train: sizes of a step.
        processes: that share its rows.
        narrow: bytes of a number of the target; products of the head are of its type too.
    """
    rows = train.rows_of_a_piece(processes)
    slots = train.anchors * (
        config.max_depth + config.first_slot if config.causal else config.block_size
    )
    # Scores are exponentiated in fp32; products read them in the narrow type.
    kept = FP32 + (narrow if narrow != FP32 else 0)
    scores = rows * config.num_heads * slots * train.width
    taps, hidden = config.feature_size, config.hidden_size
    context = (
        rows
        * train.width
        * (
            # As tapped, put together, and in fp32 for the norm.
            taps * (2 * narrow + FP32) + 4 * hidden * narrow
        )
    )
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = 6 * hidden + 6 * query + 8 * key + 4 * config.intermediate_size
    tensors = _PATH_LOGIT_TENSORS if config.path_rank else _LOGIT_TENSORS
    chunk = rows // train.chunks * train.anchors * config.max_depth
    return StepBytes(
        features=context,
        attention=scores * (config.num_layers * kept + _SCORE_TENSORS * FP32),
        activations=rows * slots * layer * config.num_layers * kept,
        logits=tensors * FP32 * chunk * config.vocab_size,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Sizes of a run; bytes are those of one process."""

    parameters: int
    weights: int
    gradients: int
    optimizer: int
    target: int
    """With the copy of the embedding that the head reads, if it is of another type."""
    step: StepBytes
    loss_rows: int
    """Rows over the vocabulary that a step learns from, over all processes."""
    tokens: int
    """Tokens of the texts that an epoch shows."""
    steps: int
    """Steps of an epoch, about: rows are never quite full."""

    @property
    def peak(self) -> int:
        """Bytes at the fullest moment, about."""
        kept = self.weights + self.gradients + self.optimizer + self.target
        return kept + sum(asdict(self.step).values())

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**asdict(self), "peak": self.peak}

    def lines(self) -> list[str]:
        """The estimate for people."""
        step = self.step
        return [
            f"head: {self.parameters:,} weights, {size(self.weights)}; gradients "
            f"{size(self.gradients)}, optimizer {size(self.optimizer)}; target {size(self.target)}",
            f"a step, estimated: features {size(step.features)}, block attention "
            f"{size(step.attention)}, layers {size(step.activations)}, logits "
            f"{size(step.logits)}; in all at most about {size(self.peak)}",
            f"{self.loss_rows:,} loss rows a step; an epoch: {self.tokens:,} tokens, about "
            f"{self.steps:,} steps",
        ]


def estimate(
    target: FrozenTarget,
    config: HeadConfig,
    train: TrainConfig,
    corpus: Corpus,
    *,
    processes: int = 1,
    shard: Shard = "none",
) -> Estimate:
    """What a run of these needs on each of ``processes``.

    Args:
        target: whole, wherever its weights are.
        config: the head.
        train: sizes of a step.
        corpus: what an epoch shows.
        processes: that share the rows of a step.
        shard: what each of them holds a part of; parts are then about as large as told.

    Raises:
        ValueError: the rows of a step cannot be shared out.
    """
    parts = processes if shard != "none" else 1
    parameters, narrow = head_parameters(config), target.embedding.element_size()
    copied = target.embedding.numel() * FP32 if narrow != FP32 else 0
    tokens = epoch_tokens(corpus, train.width)
    return Estimate(
        parameters=parameters,
        weights=-(-FP32 * parameters // parts),
        gradients=-(-FP32 * parameters // parts),
        optimizer=-(-optimizer_bytes(config, train.optimizer) // parts),
        target=target_bytes(target, layer_parts=processes if shard == "all" else 1) + copied,
        step=step_bytes(config, train, processes=processes, narrow=narrow),
        loss_rows=train.rows * train.anchors * config.max_depth,
        tokens=tokens,
        steps=-(-tokens // (train.rows * train.width)),
    )


def epoch_tokens(corpus: Corpus, width: int) -> int:
    """Tokens of all sequences that training reads, each cut at ``width``."""
    lengths = np.minimum(corpus.lengths, width)
    usable = (lengths - corpus.prompt_len >= 2) & (corpus.prompt_len >= 1)
    return int(lengths[usable].sum())


def size(number: int) -> str:
    """Bytes in the unit that people read, such as ``1.4 GiB``."""
    value, units = float(number), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"
