"""Interpreted, or on a CUDA device: walks and foreign trees equal their references."""

from __future__ import annotations

import pytest
import torch
from jetflow_kernels.round import (
    accept_walk,
    accept_walk_reference,
    build_tree_reference,
    pack_ancestors,
    pack_ancestors_reference,
)

pytestmark = pytest.mark.usefixtures("on_the_device")


def full_tree(make_requests):
    trees = build_tree_reference(**make_requests(8, requests=1).arguments)
    assert trees.num_nodes[0] > 4
    return trees


@pytest.mark.parametrize("token_type", [torch.int32, torch.int64])
def test_random_walks(make_requests, assert_same, token_type: torch.dtype) -> None:
    accepted = 0
    for seed in range(6):
        trees = build_tree_reference(**make_requests(seed, requests=3).arguments)
        generator = torch.Generator().manual_seed(seed)
        # Tokens of the tree's own, so that walks go on.
        shape = trees.tokens.shape
        order = torch.randint(shape[1], shape, generator=generator, device="cpu")
        picks = trees.tokens.gather(1, order.to(trees.tokens.device)).to(token_type)
        arguments = (trees.tokens, trees.parents, trees.num_nodes, picks)
        paths = accept_walk(*arguments, max_depth=seed)
        assert_same(paths, accept_walk_reference(*arguments, max_depth=seed))
        accepted += int(paths.accepted.sum())
    assert accepted > 0


def test_every_path_of_a_tree(make_requests, assert_same) -> None:
    trees = full_tree(make_requests)
    for last in range(1, int(trees.num_nodes[0])):
        picks = torch.full_like(trees.tokens, 99)
        path = []
        row = last
        while row > 0:
            picks[0, trees.parents[0, row]] = trees.tokens[0, row]
            path.insert(0, row)
            row = int(trees.parents[0, row])
        arguments = (trees.tokens, trees.parents, trees.num_nodes, picks)
        paths = accept_walk(*arguments, max_depth=5)
        assert paths.rows[0, : len(path) + 1].tolist() == [0, *path]
        assert paths.correction.tolist() == [99]
        assert_same(paths, accept_walk_reference(*arguments, max_depth=5))


def test_the_first_of_two_children_with_one_token(assert_same) -> None:
    tokens = torch.tensor([[7, 1, 1, 2, 3]])
    parents = torch.tensor([[-1, 0, 0, 1, 2]], dtype=torch.int32)
    picks = torch.tensor([[1, 3, 3, 0, 0]])
    count = torch.tensor([5], dtype=torch.int32)
    paths = accept_walk(tokens, parents, count, picks, max_depth=3)
    assert paths.rows.tolist() == [[0, 1, -1, -1]]
    assert paths.tokens.tolist() == [[1, 3, -1, -1]]


def foreign_trees() -> torch.Tensor:
    """A chain, a star, a random tree, bits at the ends of words; then three that are none."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(256)
    random = (torch.rand(256, generator=generator, device="cpu").to(rows.device) * rows).long()
    trees = torch.stack([rows - 1, 0 * rows, random, rows // 2, rows, rows - 1, rows - 1])
    trees[:, 0] = -1
    trees[5, 200] = 255
    trees[6, 0] = 0
    return trees


@pytest.mark.parametrize("rows", [1, 64, 65, 256])
def test_foreign_trees(rows: int) -> None:
    parents = foreign_trees()[:, :rows].contiguous()
    for count in (1, rows // 2 + 1, rows):
        num_nodes = torch.full((7,), count)
        words, valid = pack_ancestors(parents, num_nodes)
        wanted, wanted_valid = pack_ancestors_reference(parents, num_nodes)
        assert torch.equal(words, wanted)
        assert torch.equal(valid, wanted_valid)
        assert valid[:4].all()
        assert not valid[6]
    assert valid.tolist()[4:] == [rows == 1, rows < 201, False]


def test_a_count_outside_the_tree_is_flagged() -> None:
    parents = torch.tensor([[-1, 0, 1]] * 3, dtype=torch.int32)
    words, valid = pack_ancestors(parents, torch.tensor([0, 4, 3], dtype=torch.int32))
    assert valid.tolist() == [False, False, True]
    assert words[:, :, 0].tolist() == [[1, 2, 4], [1, 2, 4], [1, 3, 7]]


def test_the_ops_declare_what_they_write(make_requests) -> None:
    trees = full_tree(make_requests)
    picks = trees.tokens.clone()
    inputs = (trees.tokens, trees.parents, trees.num_nodes)
    paths = accept_walk_reference(*inputs, picks, max_depth=2)
    outs = (paths.rows, paths.tokens, paths.accepted, paths.correction)
    ops = torch.ops.jetflow_kernels
    for op, arguments in (
        (ops.accept_walk.default, (*inputs, picks, 2, *outs)),
        (ops.pack_ancestors.default, (*inputs[1:], trees.ancestors, trees.valid)),
    ):
        results = torch.library.opcheck(
            op, arguments, test_utils=("test_schema", "test_faketensor")
        )
        assert set(results.values()) == {"SUCCESS"}
