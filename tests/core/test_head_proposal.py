"""Candidates of a head with a path term against the definition, one parent at a time."""

from collections.abc import Callable

import pytest
import torch
from jetflow_core.head.config import HeadConfigError
from jetflow_core.head.model import DraftHead
from jetflow_core.head.proposal import draft_candidates
from torch import Tensor

Heads = Callable[..., DraftHead]
Matrices = tuple[Tensor, Tensor]
DEPTH = 5


def _conditional(
    head: DraftHead, embedding: Tensor, parent: int, hidden: Tensor, logits: Tensor, pool: Tensor
) -> Tensor:
    """Probabilities of ``pool`` after ``parent``, by the definition of the path term."""
    path = head.path
    assert path is not None

    def unit(x: Tensor) -> Tensor:
        return x / (x.pow(2).mean() + head.config.rms_norm_eps).sqrt()

    vector = unit(path.inner.weight @ unit(embedding[parent]))
    if path.context is not None:
        mixed = vector + path.context.weight @ unit(hidden)
        vector = unit(mixed * mixed.sigmoid())
    base = logits.softmax(-1)
    raised = base[pool] * (path.out.weight[pool] @ vector).exp()
    return raised / (raised.sum() + 1 - base[pool].sum())


def _slow(
    head: DraftHead, embedding: Tensor, root: int, hidden: Tensor, logits: Tensor
) -> tuple[list[list[int]], list[list[list[float]]]]:
    config = head.config
    everything = torch.arange(config.vocab_size)
    law = _conditional(head, embedding, root, hidden[0], logits[0], everything)
    tokens = [law.topk(config.candidates).indices.tolist()]
    table = [[law[tokens[0]].tolist()] * config.candidates]
    chance = law[tokens[0]].tolist()
    for depth in range(1, len(logits)):
        pool = logits[depth].topk(config.candidate_pool or config.candidates).indices
        laws = [
            _conditional(head, embedding, parent, hidden[depth], logits[depth], pool)
            for parent in tokens[-1]
        ]
        reached = [
            sum(c * float(law[i]) for c, law in zip(chance, laws, strict=True))
            for i in range(len(pool))
        ]
        order = range(len(pool))
        if config.candidate_pool > config.candidates:
            order = sorted(order, key=lambda i: -reached[i])[: config.candidates]
        tokens.append([int(pool[i]) for i in order])
        table.append([[float(law[i]) for i in order] for law in laws])
        chance = [reached[i] for i in order]
    return tokens, table


@pytest.mark.parametrize("pool", [0, 4, 9, 50, 500])
@pytest.mark.parametrize("context", [False, True])
def test_candidates_are_those_of_the_definition(
    pool: int, context: bool, new_head: Heads, target_matrices: Matrices
) -> None:
    embedding, lm_head = target_matrices
    head = new_head(path_rank=6, path_context=context, candidates=4, candidate_pool=pool)
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(3, DEPTH, 32, generator=generator, dtype=torch.float64)
    logits, roots = hidden @ lm_head.T / 3, torch.tensor([5, 0, 49])
    tokens, table = draft_candidates(head, embedding, roots, hidden, logits)
    assert tokens.shape == (3, DEPTH, 4) and table.shape == (3, DEPTH, 4, 4)
    changed = 0
    for row in range(3):
        slow_tokens, slow_table = _slow(
            _clamped(head), embedding, int(roots[row]), hidden[row], logits[row]
        )
        assert tokens[row].tolist() == slow_tokens
        torch.testing.assert_close(table[row].exp(), torch.tensor(slow_table, dtype=torch.float64))
        changed += tokens[row, 1:].tolist() != logits[row, 1:].topk(4).indices.tolist()
    assert (changed > 0) == (pool > 4)


def _clamped(head: DraftHead) -> DraftHead:
    if head.config.candidate_pool <= head.config.vocab_size:
        return head
    from dataclasses import replace

    clamped = DraftHead(replace(head.config, candidate_pool=head.config.vocab_size)).double()
    clamped.load_state_dict(head.state_dict())
    return clamped.requires_grad_(False)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("pool", [0, 9])
def test_short_drafts_are_the_front_of_long_ones(
    depth: int, pool: int, new_head: Heads, target_matrices: Matrices
) -> None:
    embedding, lm_head = target_matrices
    head = new_head(path_rank=6, path_context=True, candidates=4, candidate_pool=pool)
    hidden = torch.randn(2, DEPTH, 32, generator=torch.Generator().manual_seed(3)).double()
    logits, roots = hidden @ lm_head.T, torch.tensor([1, 2])
    long = draft_candidates(head, embedding, roots, hidden, logits)
    short = draft_candidates(head, embedding, roots, hidden[:, :depth], logits[:, :depth])
    assert short[0].tolist() == long[0][:, :depth].tolist()
    torch.testing.assert_close(short[1], long[1][:, :depth])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path_context": True}, "path_context True needs a path term: path_rank is 0"),
        ({"candidate_pool": 32}, "candidate_pool 32 needs a path term"),
        ({"candidate_pool": 3, "path_rank": 2}, "candidate_pool 3 is neither 0 nor at least"),
        ({"path_context": 1, "path_rank": 2}, "path_context must be true or false"),
    ],
)
def test_impossible_options_are_refused(
    options: dict[str, int], message: str, new_head: Heads
) -> None:
    with pytest.raises(HeadConfigError, match=message):
        new_head(**options)
