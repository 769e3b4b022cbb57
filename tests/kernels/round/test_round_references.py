"""The references equal the trees of jetflow_tree, whose semantics the kernels have to have."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_kernels.round import (
    accept_walk_reference,
    build_all_children,
    build_all_children_reference,
    build_tree,
    build_tree_reference,
)
from jetflow_tree import AllChildren, BestFirst, Candidates, walk
from jetflow_tree.torch import ancestor_words, best_first

seeds = st.integers(0, 2**32 - 1)


@settings(max_examples=150, deadline=None)
@given(seed=seeds, width=st.integers(1, 6))
def test_trees_equal_the_heap(make_requests, seed: int, width: int) -> None:
    requests = make_requests(seed)
    built = build_tree_reference(**requests.arguments)
    expanded = build_all_children_reference(**requests.arguments, width=width)
    for request in range(2):
        candidates = Candidates(
            requests.tokens[request].numpy(), requests.log_probs[request].numpy()
        )
        root, budget = int(requests.roots[request]), int(requests.budgets[request])
        for builder, trees in ((BestFirst(), built), (AllChildren(width), expanded)):
            tree = builder.build(root, candidates, budget)
            count = int(trees.num_nodes[request])
            assert count == tree.num_nodes
            for name in ("tokens", "parents", "depths", "scores"):
                found = getattr(trees, name)[request, :count].numpy()
                assert np.array_equal(getattr(tree, name), found), name


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_trees_equal_the_level_sweep(make_requests, seed: int) -> None:
    requests = make_requests(seed, requests=3)
    tokens = requests.tokens.clone()
    if tokens.numel() and seed % 4 == 0:
        tokens[0, 0, 0] = -1
    arguments = {**requests.arguments, "tokens": tokens}
    trees = build_tree_reference(**arguments)
    swept = best_first(
        tokens,
        requests.log_probs,
        requests.roots,
        requests.capacity,
        live_budgets=requests.budgets,
    )
    for name in ("tokens", "parents", "depths", "scores", "num_nodes", "valid"):
        assert torch.equal(getattr(swept, name), getattr(trees, name).to(getattr(swept, name)))
    assert torch.equal(ancestor_words(swept), trees.ancestors)
    assert torch.equal(trees.positions, requests.root_positions[:, None] + trees.depths)


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_walks_equal(make_requests, seed: int) -> None:
    requests = make_requests(seed, requests=1)
    tree = BestFirst().build(
        int(requests.roots[0]),
        Candidates(requests.tokens[0].numpy(), requests.log_probs[0].numpy()),
        requests.capacity,
    )
    picks = np.random.default_rng(seed).choice(tree.tokens, size=tree.num_nodes)
    wanted = walk(tree, picks)
    paths = accept_walk_reference(
        torch.tensor(tree.tokens)[None],
        torch.tensor(tree.parents)[None],
        torch.tensor([tree.num_nodes], dtype=torch.int32),
        torch.tensor(picks)[None],
        max_depth=5,
    )
    count = int(paths.accepted[0])
    assert tuple(paths.rows[0, : count + 1].tolist()) == (0, *wanted.nodes)
    assert tuple(paths.tokens[0, : count + 1].tolist()) == wanted.emitted
    assert int(paths.correction[0]) == wanted.correction
    assert paths.rows[0, count + 1 :].eq(-1).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(2, 3, dtype=torch.int64)}, r"tokens must have shape"),
        ({"tokens": torch.zeros(2, 3, 4)}, r"tokens must be .* got torch.float32"),
        ({"tokens": torch.zeros(2, 64, 4, dtype=torch.int64)}, r"depth D .* 0..63, got 64"),
        ({"tokens": torch.zeros(2, 3, 129, dtype=torch.int64)}, r"K .* 1..128, got 129"),
        ({"log_probs": torch.zeros(2, 3, 2, 4)}, r"1 or 4 parent lines a depth, got 2"),
        ({"log_probs": torch.zeros(2, 3, 1, 5)}, r"log_probs .* \[2, 3, 1, 4\], got"),
        ({"log_probs": torch.zeros(2, 3, 1, 4).long()}, r"log_probs must be .* got torch.int64"),
        ({"roots": torch.zeros(3, dtype=torch.int64)}, r"roots must have shape \[2\]"),
        ({"roots": torch.zeros(2, dtype=torch.int32)}, r"roots must be torch.int64"),
        ({"budgets": torch.zeros(2)}, r"budgets must be .* got torch.float32"),
        ({"root_positions": torch.zeros(1, dtype=torch.int64)}, r"root_positions must have"),
        ({"capacity": 0}, r"capacity must be in 1..256, got 0"),
        ({"capacity": 257}, r"capacity must be in 1..256, got 257"),
    ],
)
def test_builders_refuse_by_name(change: dict[str, object], message: str) -> None:
    arguments = {
        "tokens": torch.zeros(2, 3, 4, dtype=torch.int64),
        "log_probs": torch.zeros(2, 3, 1, 4),
        "roots": torch.zeros(2, dtype=torch.int64),
        "budgets": torch.ones(2, dtype=torch.int64),
        "root_positions": torch.zeros(2, dtype=torch.int64),
        "capacity": 8,
        **change,
    }
    for build in (
        build_tree, build_tree_reference, build_all_children, build_all_children_reference
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            build(**arguments)


def test_compiled_kernels_refuse_tensors_of_the_cpu(make_requests) -> None:
    requests = make_requests(1)
    for build in (build_tree, build_all_children):
        with pytest.raises(ValueError, match="CUDA device, got tensors on cpu"):
            build(**requests.arguments)
    with pytest.raises(ValueError, match="width must be at least 1, got 0"):
        build_all_children(**requests.arguments, width=0)
