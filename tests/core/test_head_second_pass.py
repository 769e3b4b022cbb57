"""The second pass over a tree gives each node what a block gives that begins with its path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.head.config import HeadConfig, HeadConfigError
from jetflow_core.head.context import KeysValues, PaddedContext
from jetflow_core.head.model import DraftHead
from jetflow_core.head.prefix import fill_prefix
from jetflow_core.head.proposal import draft_candidates
from jetflow_core.head.published import parse_config, write_config
from jetflow_core.head.second_pass import PaddedTrees, child_candidates, second_pass
from jetflow_tree import Tree
from torch import Tensor

CPU = torch.device("cpu")
Heads = Callable[..., DraftHead]
Matrices = tuple[Tensor, Tensor]
DEPTH = 5
LENGTHS = (9, 4, 1)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "as we train": {"depth_offset_rows": 6, "learned_mask": True, "mask_token_id": None,
                    "input_bridge": True},
}  # fmt: skip


def random_tree(seed: int, rows: int) -> Tree:
    """A tree of at most ``rows`` rows, no deeper than the heads."""
    rng = np.random.default_rng(seed)
    tokens, parents, depths = [int(rng.integers(50))], [-1], [0]
    while len(tokens) < rows:
        parent, token = int(rng.integers(len(tokens))), int(rng.integers(50))
        taken = [t for t, p in zip(tokens, parents, strict=True) if p == parent]
        if depths[parent] < DEPTH and token not in taken:
            tokens.append(token)
            parents.append(parent)
            depths.append(depths[parent] + 1)
    return Tree.from_parents(tokens, parents)


TREES = (random_tree(1, 14), Tree.from_parents([3, 8, 8, 1, 9, 2], [-1, 0, 1, 2, 3, 4]),
         Tree.root_only(17))  # fmt: skip


def contexts(head: DraftHead) -> tuple[list[KeysValues], Tensor, Tensor]:
    """Keys and values of contexts padded to one length, their lengths, their last fused rows."""
    generator = torch.Generator().manual_seed(3)
    shape = (len(LENGTHS), max(LENGTHS) + 2, head.config.feature_size)
    features = torch.randn(shape, generator=generator, dtype=torch.float64)
    positions = torch.arange(shape[1]).expand(shape[:2])
    fused, lengths = head.fuse(features), torch.tensor(LENGTHS)
    last = fused[torch.arange(len(LENGTHS)), lengths - 1]
    return head.context_keys_values(fused, positions), lengths, last


def rows_of(head: DraftHead, embedding: Tensor, trees: Sequence[Tree]) -> Tensor:
    padded = PaddedTrees.of(trees, 16, CPU)
    return second_pass(head, embedding, padded, *contexts(head))


def filled_block(
    head: DraftHead,
    embedding: Tensor,
    context: Sequence[KeysValues],
    last: Tensor,
    path: Sequence[int],
) -> Tensor:
    """The row behind ``path`` (the root first) of the block that begins with it."""
    length, slots = context[0][0].shape[2], DEPTH + 1
    tokens = torch.tensor([[*path, *[0] * (slots - len(path))]])
    block = head.block_input(tokens[:, 0], embedding, DEPTH)
    block = fill_prefix(head, block, embedding, tokens, torch.tensor([len(path) - 1]))
    block = head.bridged(block, embedding[tokens[:, 0]], last)
    seen = torch.ones(slots, length, dtype=torch.bool)
    mask = torch.cat([seen, head.block_mask(slots, CPU)], dim=1)[None, None]
    positions = length + torch.arange(slots)[None]
    return head.run_block(block, positions, PaddedContext(context, mask))[0, len(path)]


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_node_equals_the_block_that_begins_with_its_path(
    kind: str, new_head: Heads, target_matrices: Matrices
) -> None:
    head, embedding = new_head(prefix_filled=True, **OPTIONS[kind]), target_matrices[0]
    found = rows_of(head, embedding, TREES)
    (cached, _, last), compared = contexts(head), 0
    for i, tree in enumerate(TREES):
        own = [(k[i : i + 1, :, : LENGTHS[i]], v[i : i + 1, :, : LENGTHS[i]]) for k, v in cached]
        for row in range(tree.num_nodes):
            if tree.depths[row] == DEPTH:
                continue
            path = [int(tree.tokens[above]) for above in (0, *tree.path(row))]
            alone = filled_block(head, embedding, own, last[i : i + 1], path)
            assert torch.allclose(found[i, row], alone, atol=1e-9, rtol=0), (i, row)
            compared += 1
    assert compared > 15


def test_nodes_off_the_path_do_not_matter(new_head: Heads, target_matrices: Matrices) -> None:
    head, embedding = new_head(prefix_filled=True), target_matrices[0]
    tree = TREES[0]
    before = rows_of(head, embedding, [tree, *TREES[1:]])[0]
    for row in range(tree.num_nodes):
        path = (0, *tree.path(row))
        tokens = (tree.tokens + 1) % 50
        tokens[list(path)] = tree.tokens[list(path)]
        # Tokens of siblings may meet now; the pass does not ask.
        padded = PaddedTrees.of([tree, *TREES[1:]], 16, CPU)
        padded.tokens[0, : tree.num_nodes] = torch.from_numpy(tokens)
        after = second_pass(head, embedding, padded, *contexts(head))[0]
        assert torch.allclose(after[row], before[row], atol=1e-12, rtol=0)
        others = [r for r in range(tree.num_nodes) if r not in path]
        assert not any(torch.allclose(after[r], before[r], atol=1e-6) for r in others)


def test_the_roots_children_are_those_of_the_first_pass(
    new_head: Heads, target_matrices: Matrices
) -> None:
    head = new_head(prefix_filled=True, path_rank=3, path_context=True, candidates=7)
    embedding, lm_head = target_matrices
    hidden = rows_of(head, embedding, TREES)
    padded = PaddedTrees.of(TREES, 16, CPU)
    logits = hidden @ lm_head.T
    tokens, scores = child_candidates(head.path, embedding, padded.tokens, hidden, logits, 7)
    first, table = draft_candidates(
        head, embedding, padded.tokens[:, 0], hidden[:, :1], logits[:, :1]
    )
    assert (tokens[:, 0] == first[:, 0]).all()
    assert torch.allclose(scores[:, 0], table[:, 0, 0], atol=1e-12, rtol=0)


def test_children_are_a_part_of_one_distribution(
    new_head: Heads, target_matrices: Matrices
) -> None:
    embedding, lm_head = target_matrices
    head = new_head(prefix_filled=True, path_rank=3)
    hidden = rows_of(head, embedding, TREES)
    tokens = PaddedTrees.of(TREES, 16, CPU).tokens
    logits = hidden @ lm_head.T
    _, scores = child_candidates(head.path, embedding, tokens, hidden, logits, 99)
    assert scores.shape == (3, 16, 50)
    assert torch.allclose(scores.exp().sum(-1), torch.ones(3, 16, dtype=torch.float64))
    assert (scores[..., 1:] <= scores[..., :-1]).all() and scores.max() <= 0
    _, fewer = child_candidates(head.path, embedding, tokens, hidden, logits, 4)
    assert torch.equal(fewer, scores[..., :4])
    _, bare = child_candidates(None, embedding, tokens, hidden, logits, 50)
    assert torch.allclose(bare, logits.log_softmax(-1).sort(-1, descending=True).values)


def test_a_block_without_tokens_stays_as_it_is(new_head: Heads, target_matrices: Matrices) -> None:
    head, embedding = new_head(prefix_filled=True, **OPTIONS["as we train"]), target_matrices[0]
    tokens = torch.tensor([[4, 9, 2, 2, 1, 0]])
    block = head.block_input(tokens[:, 0], embedding, DEPTH)
    assert torch.equal(fill_prefix(head, block, embedding, tokens, torch.tensor([0])), block)
    filled = fill_prefix(head, block, embedding, tokens, torch.tensor([2]))
    assert torch.equal(filled[0, 1:3], embedding[tokens[0, 1:3]] + head.depth_offsets[1:3])
    assert torch.equal(filled[0, 3:], block[0, 3:]) and torch.equal(filled[0, 0], block[0, 0])


def test_a_head_that_never_saw_tokens_is_refused_by_name(
    new_head: Heads, target_matrices: Matrices
) -> None:
    head, embedding = new_head(), target_matrices[0]
    with pytest.raises(ValueError, match=r"a second pass needs .*jetflow train --prefix-fill"):
        rows_of(head, embedding, TREES)
    tokens = torch.zeros(1, 6, dtype=torch.int64)
    block = head.block_input(tokens[:, 0], embedding, DEPTH)
    with pytest.raises(ValueError, match="a prefix-filled block needs"):
        fill_prefix(head, block, embedding, tokens, torch.tensor([1]))
    with pytest.raises(ValueError, match="trees of up to 14 rows do not fit 13 rows"):
        PaddedTrees.of(TREES, 13, CPU)


def test_the_config_tells_it(head_config: Callable[..., HeadConfig]) -> None:
    config = head_config(prefix_filled=True)
    assert write_config(config)["jetflow"]["prefix_filled"] is True
    assert parse_config(write_config(config)) == config
    # Earlier versions refuse a key that they do not know, and need not here.
    assert "prefix_filled" not in write_config(head_config())["jetflow"]
    for changes in ({"causal": False}, {"draft_shift": True}, {"block_size": 2}):
        with pytest.raises(HeadConfigError, match="prefix_filled needs a causal head"):
            head_config(prefix_filled=True, **changes)
    with pytest.raises(HeadConfigError, match="prefix_filled"):
        head_config(prefix_filled=1)
