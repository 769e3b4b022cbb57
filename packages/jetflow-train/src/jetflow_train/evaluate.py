"""Offline tau: walk stored greedy answers with the head's trees.

For a greedy target the longest tree path that equals the stored continuation is what verification
would accept, so no target call is needed beyond the features. This is the quick check of a
training run; decode rounds with the real engine are the figure to publish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jetflow_core.head.model import DraftHead
from jetflow_core.head.proposal import draft_candidates
from jetflow_tree import BestFirst, Candidates, Chain, TreeBuilder, lazy_walk
from numpy.typing import NDArray
from torch import Tensor

from jetflow_train.blocks import run_blocks
from jetflow_train.shards import Corpus
from jetflow_train.step import autocast, document_mask
from jetflow_train.target import FrozenTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class Walked:
    """Tokens and rounds of a walk; tau is tokens per round, the correction token included."""

    tokens: int
    rounds: int

    @property
    def tau(self) -> float:
        """Tokens per round."""
        return self.tokens / self.rounds if self.rounds else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Walks by tree policy, and how often each depth's best token was the stored one."""

    walks: Mapping[str, Walked]
    top1_by_depth: tuple[float, ...]

    def line(self) -> str:
        """One line of text: tau of each policy."""
        return " ".join(f"{name} {walked.tau:.3f}" for name, walked in self.walks.items())


def policies(budgets: Sequence[int]) -> dict[str, tuple[TreeBuilder, int]]:
    """Builders and budgets to compare; budgets count the root."""
    named: dict[str, tuple[TreeBuilder, int]] = {"chain": (Chain(), max(budgets))}
    return named | {str(budget): (BestFirst(), budget) for budget in budgets}


@torch.no_grad()
def evaluate(
    target: FrozenTarget,
    head: DraftHead,
    corpus: Corpus,
    *,
    budgets: Sequence[int] = (16, 64, 256),
    use_path: bool = True,
) -> Evaluation:
    """Tau of the head on stored greedy answers.

    Args:
        target: the target that wrote the answers.
        head: the head, on the target's device.
        corpus: held-out sequences; sampled answers are refused.
        budgets: rows of a tree, the root included.
        use_path: False leaves the path term out, as a comparison.

    Raises:
        ValueError: an answer was sampled: the walk would not be what verification accepts.
    """
    if (corpus.temperature != 0).any():
        raise ValueError("the walk needs greedy answers, the corpus holds sampled ones")
    builders = policies(budgets)
    counts = {name: np.zeros(2, dtype=np.int64) for name in builders}
    hits = np.zeros((2, head.config.max_depth), dtype=np.int64)
    embedding = target.embedding.to(next(head.parameters()).dtype)
    for index in range(len(corpus)):
        tokens = corpus.sequence(index).astype(np.int64)
        first = int(corpus.prompt_len[index]) - 1
        if len(tokens) - first < 2:
            continue
        drafts, best = draft_everywhere(target, head, embedding, tokens, first, use_path=use_path)
        _count_hits(hits, best, tokens, first)
        for name, (builder, budget) in builders.items():
            counts[name] += walk_answer(tokens, first, drafts, builder, budget)
    walks = {name: Walked(tokens=int(c[0]), rounds=int(c[1])) for name, c in counts.items()}
    top1 = tuple(float(h) / max(1, int(n)) for h, n in zip(*hits, strict=True))
    return Evaluation(walks=walks, top1_by_depth=top1)


def walk_answer(
    tokens: NDArray[np.int64],
    first: int,
    drafts: Sequence[Candidates],
    builder: TreeBuilder,
    budget: int,
) -> tuple[int, int]:
    """Tokens and rounds of decoding ``tokens[first + 1 :]``.

    Args:
        tokens: prompt and answer.
        first: the first root, the prompt's last token.
        drafts: candidates for each root ``first``, ``first + 1``, ...
        builder: makes the trees.
        budget: rows of a tree.
    """
    at, rounds, end = first, 0, len(tokens) - 1
    while at < end:
        tree = builder.build(int(tokens[at]), drafts[at - first], budget)
        here, depths = at, tree.depths

        def stored(row: int, here: int = here, depths: NDArray[np.int32] = depths) -> int:
            place = here + 1 + int(depths[row])
            return int(tokens[place]) if place <= end else -1

        at = min(end, at + len(lazy_walk(tree, stored).nodes) + 1)
        rounds += 1
    return end - first, rounds


def draft_everywhere(
    target: FrozenTarget,
    head: DraftHead,
    embedding: Tensor,
    tokens: NDArray[np.int64],
    first: int,
    *,
    use_path: bool,
) -> tuple[list[Candidates], NDArray[np.int64]]:
    """Candidates at every root from ``first`` to the last but one token.

    Returns:
        One ``Candidates`` a root, and the best token of each depth ``[roots, depth]``.
    """
    device = target.device
    row = torch.from_numpy(tokens).to(device)[None]
    documents = torch.zeros_like(row)
    positions = torch.arange(row.shape[1], device=device)[None]
    anchors = torch.arange(first, row.shape[1] - 1, device=device)[None]
    features, _ = target.capture(
        row, positions, document_mask(documents), head.config.target_layer_ids
    )
    with autocast(device, head):
        hidden = run_blocks(head, features, embedding, row, documents, positions, anchors)[0]
    logits = hidden.to(target.dtype) @ target.lm_head.T
    wide = logits if logits.dtype == torch.float64 else logits.float()
    roots = row[0, anchors[0]]
    if use_path or head.path is None:
        chosen, table = draft_candidates(head, embedding, roots, hidden.to(embedding.dtype), wide)
    else:
        best, chosen = wide.topk(min(head.config.candidates, wide.shape[-1]), dim=-1)
        table = (best - wide.logsumexp(-1, keepdim=True)).clamp(max=0.0).unsqueeze(2)
    chosen_cpu, table_cpu = chosen.cpu().numpy(), table.double().cpu().numpy()
    drafts = [
        Candidates(tokens=chosen_cpu[i], log_probs=table_cpu[i]) for i in range(len(chosen_cpu))
    ]
    return drafts, chosen_cpu[:, :, 0]


def _count_hits(
    hits: NDArray[np.int64], best: NDArray[np.int64], tokens: NDArray[np.int64], first: int
) -> None:
    for depth in range(1, min(best.shape[1], len(tokens) - 1 - first) + 1):
        stored = tokens[first + depth :]
        hits[0, depth - 1] += int((best[: len(stored), depth - 1] == stored).sum())
        hits[1, depth - 1] += len(stored)
