"""Interpreted, or on a CUDA device: the builders equal their references, ties included."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_kernels.round import (
    TreeBatch,
    build_all_children,
    build_all_children_reference,
    build_tree,
    build_tree_reference,
    pack_ancestors,
)

pytestmark = pytest.mark.usefixtures("on_the_device")
seeds = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Requests:
    """Arguments of the builders."""

    tokens: torch.Tensor
    log_probs: torch.Tensor
    roots: torch.Tensor
    budgets: torch.Tensor
    root_positions: torch.Tensor
    capacity: int

    @property
    def arguments(self):
        return {field.name: getattr(self, field.name) for field in fields(self)}


def check_both(requests, assert_same, width: int) -> None:
    arguments = requests.arguments
    trees = build_tree(**arguments)
    assert_same(trees, build_tree_reference(**arguments))
    words, valid = pack_ancestors(trees.parents, trees.num_nodes)
    assert torch.equal(words, trees.ancestors)
    assert valid.all()
    trees = build_all_children(**arguments, width=width)
    assert_same(trees, build_all_children_reference(**arguments, width=width))


@settings(max_examples=6, deadline=None, derandomize=True, database=None)
@given(seed=seeds, width=st.integers(1, 6))
def test_random_requests(make_requests, assert_same, seed: int, width: int) -> None:
    check_both(make_requests(seed, most_rows=20, requests=1), assert_same, width)


@pytest.mark.slow
@settings(max_examples=2, deadline=None)
@given(seed=seeds, width=st.integers(1, 6))
def test_many_random_requests(make_requests, assert_same, seed: int, width: int) -> None:
    check_both(make_requests(seed, most_rows=32, requests=3), assert_same, width)


@pytest.mark.parametrize(
    "tables", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)]
)
def test_all_equal_scores_come_by_depth_and_path(make_requests, assert_same, tables) -> None:
    requests = make_requests(3, requests=1)
    shape = (1, 3, 3, 3)
    requests = replace(
        requests,
        tokens=torch.arange(9, dtype=torch.int32).view(1, 3, 3),
        log_probs=torch.zeros(shape, dtype=tables),
        roots=torch.tensor([5], dtype=torch.int32),
        budgets=torch.tensor([18]),
        capacity=20,
    )
    check_both(requests, assert_same, 2)
    trees = build_tree(**requests.arguments)
    assert trees.depths[0].tolist() == [0, *[1] * 3, *[2] * 9, *[3] * 5, 0, 0]
    assert trees.parents[0].tolist() == [
        -1, 0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, -1, -1
    ]  # fmt: skip


@pytest.mark.parametrize("lines", [1, 4])
@pytest.mark.parametrize("step", [0.25, 2.0**-50], ids=["sorted", "scanned"])
def test_equal_scores_where_siblings_are_sorted_and_where_not(
    assert_same, lines: int, step: float
) -> None:
    # A difference of 2**-50 is lost in the sum below -0.75 and kept below 0.
    generator = torch.Generator().manual_seed(lines)
    multiples = torch.randint(0, 4, (1, 4, lines, 4), generator=generator, device="cpu")
    log_probs = multiples.to(torch.get_default_device(), torch.float64) * -step
    log_probs[:, ::2] -= 0.75
    requests = Requests(
        tokens=torch.arange(16).view(1, 4, 4), log_probs=log_probs, roots=torch.tensor([5]),
        budgets=torch.tensor([32]), root_positions=torch.tensor([0]), capacity=32,
    )  # fmt: skip
    check_both(requests, assert_same, 3)


def test_what_is_out_of_contract_is_its_root_and_spares_the_others(assert_same) -> None:
    log_probs = torch.full((7, 1, 1, 2), -0.5)
    log_probs[0, 0, 0, 1] = torch.nan
    log_probs[1, 0, 0, 1] = 0.25
    tokens = torch.tensor([[[1, 2]]]).repeat(7, 1, 1)
    tokens[2] = 1
    tokens[3, 0, 1] = -1
    # An absent candidate may carry any token.
    tokens[6] = -1
    log_probs[6, 0, 0, 1] = -torch.inf
    tokens[6, 0, 0] = 4
    arguments = {
        "tokens": tokens,
        "log_probs": log_probs,
        "roots": torch.arange(7),
        "budgets": torch.tensor([3, 3, 3, 3, 0, 4, 3]),
        "root_positions": torch.zeros(7, dtype=torch.int32),
        "capacity": 3,
    }
    trees = build_tree(**arguments)
    assert_same(trees, build_tree_reference(**arguments))
    assert trees.valid.tolist() == [False] * 6 + [True]
    assert trees.num_nodes.tolist() == [1] * 6 + [2]
    assert_same(build_all_children(**arguments), build_all_children_reference(**arguments))


def test_long_paths_with_ties_need_several_words(assert_same) -> None:
    # 33 candidates take 6 bits, so 12 depths do not fit into one word of 63.
    width, depth = 33, 12
    log_probs = torch.full((1, depth, 1, width), -torch.inf)
    log_probs[:, :, :, [3, 31]] = 0.0
    log_probs[:, 2:, :, 31] = -torch.inf
    arguments = {
        "tokens": torch.arange(width).repeat(1, depth, 1),
        "log_probs": log_probs,
        "roots": torch.tensor([0]),
        "budgets": torch.tensor([64]),
        "root_positions": torch.tensor([7]),
        "capacity": 65,
    }
    trees = build_tree(**arguments)
    assert_same(trees, build_tree_reference(**arguments))
    assert trees.num_nodes.tolist() == [1 + 2 + 4 * 11]


def test_a_tree_of_more_than_two_words(assert_same) -> None:
    # A chain: row 150 sees every bit below its own.
    arguments = {
        "tokens": torch.arange(1, 64).view(1, 63, 1),
        "log_probs": torch.full((1, 63, 1, 1), -0.01),
        "roots": torch.tensor([0]),
        "budgets": torch.tensor([200]),
        "root_positions": torch.tensor([1000]),
        "capacity": 200,
    }
    trees = build_tree(**arguments)
    assert_same(trees, build_tree_reference(**arguments))
    assert trees.ancestors[0, 63].tolist() == [-1, 0, 0, 0]
    assert trees.ancestors[0, 199].tolist() == [0, 0, 0, 1 << 7]
    assert trees.positions[0, 63] == 1063


def test_results_can_be_written_into_given_tensors(make_requests, assert_same) -> None:
    requests = make_requests(11, most_rows=12)
    out = TreeBatch.empty(
        2,
        requests.capacity,
        token_type=torch.int64,
        position_type=torch.int64,
        device=requests.tokens.device,
    )
    out.scores.fill_(torch.nan)
    assert build_tree(**requests.arguments, out=out) is out
    assert_same(out, build_tree_reference(**requests.arguments))


def test_the_op_declares_what_it_writes(make_requests) -> None:
    requests = make_requests(5, most_rows=6)
    arguments = requests.arguments
    trees = build_tree_reference(**arguments)
    del arguments["capacity"]
    results = torch.library.opcheck(
        torch.ops.jetflow_kernels.build_tree.default,
        (*arguments.values(), *trees.tensors().values()),
        test_utils=("test_schema", "test_faketensor"),
    )
    assert set(results.values()) == {"SUCCESS"}
