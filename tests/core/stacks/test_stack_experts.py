"""Mixtures of fixed shape against the loop over experts."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.stacks import ExpertWeights, TorchOps
from jetflow_core.stacks.experts import (
    Mix,
    Routes,
    mix_by_loop,
    mix_dense,
    mix_for,
    mix_gathered,
    mix_grouped,
    route,
)
from torch import Tensor

HIDDEN = 16
FIXED = (mix_gathered, mix_dense, mix_grouped)
silu_mul = TorchOps().silu_mul
sizes = st.integers(1, 9).flatmap(
    lambda count: st.tuples(st.just(count), st.integers(1, count), st.integers(1, 12))
)


def random_experts(count: int, chosen: int, inner: int = 8, normalised: bool = True) -> Any:
    return ExpertWeights(
        router=torch.randn(count, HIDDEN),
        gate_up=torch.randn(count, 2 * inner, HIDDEN) / 4,
        down=torch.randn(count, HIDDEN, inner) / 3,
        chosen=chosen,
        normalised=normalised,
    )


@pytest.mark.parametrize("mix", FIXED)
@settings(deadline=None, max_examples=20)
@given(sizes=sizes, seed=st.integers(0, 10**6), crowded=st.booleans())
def test_a_mix_of_fixed_shape_equals_the_loop(
    sizes: tuple[int, int, int], seed: int, crowded: bool, mix: Mix
) -> None:
    count, chosen, rows = sizes
    torch.manual_seed(seed)
    weights = random_experts(count, chosen)
    # Crowded: all rows choose the same experts, and nobody chooses the others.
    x = torch.randn(1 if crowded else rows, HIDDEN).expand(rows, -1).contiguous()
    routes = route(x @ weights.router.T, weights)
    expected = mix_by_loop(x, routes, weights, silu_mul)
    found = mix(x, routes, weights, silu_mul)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert found.shape == (rows, HIDDEN)


@given(seed=st.integers(0, 10**6), normalised=st.booleans())
@settings(deadline=None, max_examples=20)
def test_shares_are_the_greatest_probabilities(seed: int, normalised: bool) -> None:
    torch.manual_seed(seed)
    weights = random_experts(7, 3, normalised=normalised)
    logits = torch.randn(5, 7) * 3
    routes = route(logits, weights)
    for row in range(5):
        masses = {expert: float(logits[row, expert].exp()) for expert in range(7)}
        best = sorted(masses, key=lambda expert: masses[expert], reverse=True)[:3]
        total = sum(masses[expert] for expert in (best if normalised else range(7)))
        assert routes.experts[row].tolist() == best
        wanted = torch.tensor([masses[expert] / total for expert in best])
        torch.testing.assert_close(routes.shares[row], wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mix", FIXED)
def test_an_expert_that_nobody_chose_changes_nothing(mix: Mix) -> None:
    torch.manual_seed(0)
    weights = random_experts(4, 2)
    x = torch.randn(6, HIDDEN)
    routes = Routes(torch.tensor([[0, 3]] * 6), torch.rand(6, 2))
    expected = mix(x, routes, weights, silu_mul)
    for part in (weights.gate_up, weights.down):
        part[1:3] = torch.inf
    assert torch.equal(mix(x, routes, weights, silu_mul), expected)


@pytest.mark.parametrize("mix", FIXED)
def test_no_shape_of_a_mix_depends_on_a_value(mix: Mix) -> None:
    # On the meta device there are no values: whatever asked for one would fail.
    bare = partial(torch.empty, device="meta", dtype=torch.bfloat16)
    weights = ExpertWeights(
        router=bare(6, HIDDEN), gate_up=bare(6, 16, HIDDEN), down=bare(6, HIDDEN, 8),
        chosen=2, normalised=True,
    )  # fmt: skip
    routes = route(bare(5, 6), weights)
    assert mix(bare(5, HIDDEN), routes, weights, silu_mul).shape == (5, HIDDEN)
    # The loop asks for values, so the check can fail.
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        mix_by_loop(bare(5, HIDDEN), routes, weights, silu_mul)


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, mix_gathered), (5, mix_gathered), (6, mix_dense)]
)
def test_the_cheaper_one_is_taken_by_sizes(rows: int, expected: Mix) -> None:
    assert mix_for(rows, random_experts(128, 8, inner=1)) is expected


def test_a_stack_takes_the_mix_it_is_told(
    lively_model: Callable[..., Any], paged_run: Any, some_requests: tuple[Any, ...]
) -> None:
    from jetflow_core.stacks import DecoderStack, stack_of_model

    made = stack_of_model(lively_model("qwen3_moe", dtype=torch.float32))
    asked: list[int] = []

    def choose(mix: Mix) -> Callable[[int, ExpertWeights], Mix]:
        return lambda rows, weights: (asked.append(rows), mix)[1]

    hidden: list[Tensor] = []
    for mix in (mix_by_loop, *FIXED):
        stack = DecoderStack(made.shape, made.weights, made.rope, choose_mix=choose(mix))
        paged = paged_run(stack, len(some_requests))
        hidden.append(paged.run(some_requests)[0])
    for each in hidden[1:]:
        torch.testing.assert_close(each, hidden[0], rtol=1e-5, atol=1e-5)
    assert asked == [13] * 4 * made.shape.num_layers
