"""Any trees of any requests: the rows of transformers, whoever else is in the pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.stacks import DecoderStack, stack_of_model

TAPS = (2, 1)
tokens = st.integers(0, 127)
KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe")


@st.composite
def requests(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    count = draw(st.integers(1, 9))
    parents = [-1, *(draw(st.integers(0, row - 1)) for row in range(1, count))]
    prefix = draw(st.lists(tokens, max_size=11))
    own = draw(st.lists(tokens, min_size=count, max_size=count))
    return tuple(prefix), tuple(own), tuple(parents)


@pytest.fixture(scope="module")
def pairs(lively_model: Callable[..., Any]) -> dict[str, tuple[Any, DecoderStack]]:
    """Models and their stacks, by kind."""
    models = {kind: lively_model(kind) for kind in KINDS}
    return {kind: (model, stack_of_model(model, taps=TAPS)) for kind, model in models.items()}


@settings(deadline=None, max_examples=25)
@given(
    kind=st.sampled_from(KINDS),
    some=st.lists(requests(), min_size=1, max_size=4),
    padding=st.integers(0, 3),
)
def test_rows_are_those_of_transformers_whoever_else_is_in_the_pass(
    kind: str,
    some: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]],
    padding: int,
    pairs: dict[str, tuple[Any, DecoderStack]],
    paged_run: Any,
    some_requests: tuple[Any, ...],
    transformers_rows: Callable[..., tuple[Any, Any]],
) -> None:
    model, stack = pairs[kind]
    made = [type(some_requests[0])(*each) for each in some]
    paged = paged_run(stack, len(made), capacity=24)
    paged.prefill([request.prefix for request in made])
    before = [pool.clone() for pool in (*paged.pools.keys, *paged.pools.values)]
    hidden, features = paged.run(made, padding=padding)
    logits = stack.logits(hidden)
    first = 0
    for request in made:
        rows = slice(first, first := first + len(request.tokens))
        expected, tapped = transformers_rows(model, request, TAPS)
        torch.testing.assert_close(logits[rows], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(features[rows], tapped, rtol=0, atol=1e-10)
    written = {
        paged.slot(index, len(request.prefix) + row)
        for index, request in enumerate(made)
        for row in range(len(request.tokens))
    }
    for pool, old in zip((*paged.pools.keys, *paged.pools.values), before, strict=True):
        changed = (pool.flatten(0, 1) != old.flatten(0, 1)) & ~old.flatten(0, 1).isnan()
        fresh = old.flatten(0, 1).isnan() & ~pool.flatten(0, 1).isnan()
        touched = (changed | fresh).flatten(1).any(1).nonzero()[:, 0].tolist()
        assert set(touched) == written


def test_bfloat16_is_no_further_from_the_truth_than_transformers(
    lively_model: Callable[..., Any],
    paged_run: Any,
    some_requests: tuple[Any, ...],
    transformers_rows: Callable[..., tuple[Any, Any]],
) -> None:
    request = some_requests[0]
    exact = lively_model("qwen3")
    rounded = lively_model("qwen3", dtype=torch.bfloat16)
    # The same weights, or the two would differ by more than arithmetic.
    exact.load_state_dict(rounded.state_dict())
    truth, _ = transformers_rows(exact, request, ())
    theirs, _ = transformers_rows(rounded, request, ())
    stack = stack_of_model(rounded)
    paged = paged_run(stack, 1)
    paged.prefill([request.prefix])
    hidden, _ = paged.run([request])
    logits = stack.logits(hidden)
    assert logits.dtype == torch.bfloat16
    mine, others = [(each.double() - truth).abs().mean() for each in (logits, theirs)]
    assert 0 < mine <= 1.5 * others
