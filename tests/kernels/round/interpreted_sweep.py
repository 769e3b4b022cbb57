"""Interpreted, or on a CUDA device: trees built depth by depth equal the heap's, ties included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_kernels.round import build_tree, build_tree_reference
from jetflow_kernels.round.build_sizes import is_swept

pytestmark = pytest.mark.usefixtures("on_the_device")
seeds = st.integers(0, 2**32 - 1)


def peaked(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    scores = rng.normal(size=shape) * 2
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True)) - 0.01


def latticed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Multiples of an eighth: whole groups of nodes with one score."""
    return np.round(np.minimum(peaked(rng, shape), 0) * 8) / 8


def holed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Most candidates are absent, and whole lines of them."""
    return np.where(rng.random(shape) < 0.7, -np.inf, latticed(rng, shape))


def rounding(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Tenths: equal sums in another order of addition differ in their last bits, or do not."""
    return -rng.integers(0, 6, size=shape) / 10


KINDS = {"peaked": peaked, "latticed": latticed, "holed": holed, "rounding": rounding}


def requests_of(log_probs: np.ndarray, budgets: list[int], capacity: int) -> dict[str, Any]:
    requests, depth, _, width = log_probs.shape
    assert is_swept(capacity, depth, width)
    # Copies: views of numpy's memory are not made on the default device.
    return {
        "tokens": torch.arange(depth * width).view(1, depth, width).repeat(requests, 1, 1),
        "log_probs": torch.tensor(log_probs),
        "roots": torch.arange(requests),
        "budgets": torch.tensor(budgets),
        "root_positions": torch.arange(requests) + 7,
        "capacity": capacity,
    }


def check(assert_same: Any, arguments: dict[str, Any]) -> Any:
    trees = build_tree(**arguments)
    assert_same(trees, build_tree_reference(**arguments))
    return trees


def random_case(assert_same: Any, seed: int, kind: str, most_depth: int) -> None:
    rng = np.random.default_rng(seed)
    depth, width = int(rng.integers(2, most_depth)), int(rng.integers(1, 7))
    lines = int(rng.choice([1, width]))
    capacity = int(rng.integers(33, 80))
    budgets = [int(rng.integers(1, capacity + 1)), capacity]
    log_probs = KINDS[kind](rng, (2, depth, lines, width))
    check(assert_same, requests_of(log_probs, budgets, capacity))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=1, deadline=None, derandomize=True, database=None)
@given(seed=seeds)
def test_random_requests(assert_same, kind: str, seed: int) -> None:
    random_case(assert_same, seed, kind, 5)


def test_more_depths_than_sixteen(assert_same) -> None:
    """They are grown with the slots of 256 rows, however few the tree has."""
    log_probs = peaked(np.random.default_rng(5), (2, 18, 3, 3))
    trees = check(assert_same, requests_of(log_probs, [36, 40], 40))
    assert int(trees.depths.max()) > 2


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(seed=seeds, kind=st.sampled_from(sorted(KINDS)))
def test_many_random_requests(assert_same, seed: int, kind: str) -> None:
    random_case(assert_same, seed, kind, 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "depth", "lines", "width", "capacity"),
    [("latticed", 9, 16, 16, 256), ("rounding", 5, 1, 32, 90), ("peaked", 20, 3, 3, 130)],
)
def test_large_requests(
    assert_same, kind: str, depth: int, lines: int, width: int, capacity: int
) -> None:
    log_probs = KINDS[kind](np.random.default_rng(0), (1, depth, lines, width))
    check(assert_same, requests_of(log_probs, [capacity], capacity))


def test_too_many_equal_scores_are_built_node_by_node(assert_same) -> None:
    # 16 + 256 + 4096 nodes of score 0: the list holds 1024.
    trees = check(assert_same, requests_of(np.zeros((1, 3, 1, 16)), [18], 40))
    assert trees.depths[0, :18].tolist() == [0, *[1] * 16, 2]


def test_scores_out_of_all_proportion_are_built_node_by_node(assert_same) -> None:
    log_probs = np.full((1, 2, 1, 2), -1e32)
    log_probs[:, :, :, 1] = -1e-300
    trees = check(assert_same, requests_of(log_probs, [7], 40))
    assert trees.num_nodes.tolist() == [7]


def test_small_trees_of_few_candidates(assert_same) -> None:
    # Fewer nodes than rows, one candidate a depth, and no candidate at all.
    log_probs = np.full((3, 4, 1, 1), -0.5)
    log_probs[1, 2:] = -np.inf
    log_probs[2] = -np.inf
    trees = check(assert_same, requests_of(log_probs, [40, 40, 40], 40))
    assert trees.num_nodes.tolist() == [5, 3, 1]


def test_what_is_out_of_contract_is_its_root_and_spares_the_others(assert_same) -> None:
    log_probs = np.full((6, 2, 2, 2), -0.5)
    log_probs[0, 1, 0, 1] = np.nan
    log_probs[1, 0, 0, 1] = 0.25
    log_probs[2, 1] = np.inf
    arguments = requests_of(log_probs, [7, 7, 7, 0, 41, 7], 40)
    trees = check(assert_same, arguments)
    assert trees.valid.tolist() == [False] * 5 + [True]
    assert trees.num_nodes.tolist() == [1] * 5 + [7]
