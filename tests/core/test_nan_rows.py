"""A row that is not finite reaches only the rows that see it, and is an error only when needed."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import jetflow_core.session as session_module
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.cache import KVCache
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.guarded import GuardedLayout
from jetflow_core.layouts import BatchedLayout, Segment, SlotwiseLayout
from jetflow_core.picker import NonFiniteLogitsError, argmax_rows
from jetflow_core.sampling import SamplingParams
from jetflow_core.session import CachedSession
from jetflow_core.target import Target
from jetflow_tree import Candidates, Tree, ancestor_matrix
from torch import Tensor

PROMPT = (3, 14, 15, 92, 65)
HEADS, KV_HEADS, WIDTH = 6, 2, 8
BROKEN = (math.nan, math.inf, -math.inf)


@pytest.fixture(scope="module", params=["slotwise", "batched"])
def layouts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every pass in the layout of a CPU, then in that of a GPU's batches."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "batched":
            patch.setattr(session_module, "SlotwiseLayout", BatchedLayout)
        yield


@pytest.fixture(scope="module")
def broken(tiny_model: Callable[..., Any]) -> Callable[..., Target]:
    """`broken(token, value)`: the target of every test here, one embedding replaced or none."""

    @cache
    def make(token: int = 0, value: float | None = None) -> Target:
        model = tiny_model("qwen3")
        if value is not None:
            model.get_input_embeddings().weight.data[token] = value
        return Target.from_model(model, taps=(0, 3))

    return make


class Offers:
    """Offers the same candidates at every depth; of requests it knows nothing."""

    def __init__(self, *tokens: int, depth: int = 3) -> None:
        self.max_depth = depth
        self._tokens = tokens

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        """Nothing."""

    def observe(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        """Nothing."""

    def propose(self, slots: Sequence[int], roots: Sequence[int], depth: int) -> list[Candidates]:
        tokens = np.array([self._tokens] * depth)
        scores = np.log(np.full(tokens.shape, 1 / (len(self._tokens) + 1)))
        return [Candidates.marginal(tokens, scores) for _ in slots]


def _plain(target: Target, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[Any]:
    return Engine(target, None).generate_batch(prompts, params, TreeOptions(budget=1))


@pytest.mark.usefixtures("layouts")
@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafted_token_that_is_never_chosen_may_be_broken(
    broken: Callable[..., Target], value: float, temperature: float
) -> None:
    params = SamplingParams(max_new_tokens=10, temperature=temperature, seed=3)
    prompts = [PROMPT, (7, 8)]
    chosen = {token for each in _plain(broken(), prompts, params) for token in each.tokens}
    right = _plain(broken(), prompts, params)
    bad = next(t for t in range(128) if t not in chosen and t not in (*PROMPT, 7, 8))
    target = broken(bad, value)
    drafter = Offers(bad, *list(chosen)[:5])
    found = Engine(target, None).generate_batch(
        prompts, params, TreeOptions(budget=24), drafter=drafter
    )
    assert [each.tokens for each in found] == [each.tokens for each in right]
    assert any(r.accepted.nodes for each in found for r in each.rounds)
    assert all(bad in r.tree.tokens for each in found for r in each.rounds[:-1])


@pytest.mark.usefixtures("layouts")
@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 10**6))
def test_rows_that_do_not_see_it_are_as_without_it(
    broken: Callable[..., Target], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parents = [-1, *(int(rng.integers(row)) for row in range(1, 12))]
    tokens = [PROMPT[-1], *rng.permutation(100)[:11].tolist()]
    tree, bad = Tree.from_parents(tokens, parents), int(rng.integers(1, 12))
    seers = ancestor_matrix(tree)[:, bad]
    tokens[bad] = 120
    outputs = []
    for target in (broken(), broken(120, math.nan)):
        session = CachedSession(target, capacity=20, num_slots=2, max_rows=12)
        for slot in range(2):
            session.prefill(slot, PROMPT)
        trees = [Tree.from_parents(tokens, parents), Tree.from_parents(tokens[:bad], parents[:bad])]
        outputs.append(session.verify([1, 0], trees))
        session.commit(1, [0])
        outputs[-1] += session.verify([1], [Tree.root_only(4)])
    for clean, other in zip(*outputs, strict=True):
        sees = torch.from_numpy(seers)[: len(clean.logits)] & (len(clean.logits) == 12)
        for name in ("logits", "features"):
            was, now = getattr(clean, name), getattr(other, name)
            torch.testing.assert_close(now[~sees], was[~sees], rtol=0, atol=1e-10)
        assert not other.logits[sees].isfinite().any()


def test_a_walk_that_arrives_there_names_row_and_request(broken: Callable[..., Target]) -> None:
    params = SamplingParams(max_new_tokens=6)
    prompts = [(7, 8), PROMPT]
    right = _plain(broken(), prompts, params)
    bad = next(t for t in right[1].tokens if t not in right[0].tokens)
    engine = Engine(broken(bad, math.nan), None)
    for budget in (1, 8):
        with pytest.raises(NonFiniteLogitsError, match=r"request 1, row \d+ of a tree of \d+.*nan"):
            engine.generate_batch(
                prompts, params, TreeOptions(budget=budget), drafter=Offers(bad, 1)
            )
    only = engine.generate_batch(prompts[:1], params, TreeOptions(budget=8), drafter=Offers(bad, 1))
    assert only[0].tokens == right[0].tokens


def test_a_row_without_a_best_token_has_none() -> None:
    rows = torch.zeros(5, 4)
    rows[1, 2], rows[2, 1], rows[3] = math.nan, math.inf, -math.inf
    rows[4] = torch.tensor([0.0, 1.0, -math.inf, 1.0])
    assert argmax_rows(rows) == [0, None, None, None, 1]


@settings(deadline=None, max_examples=60)
@given(
    start=st.integers(0, 6),
    count=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    value=st.sampled_from(BROKEN),
)
def test_the_guarded_layout_is_the_fast_one_but_for_what_is_not_finite(
    start: int, count: int, seed: int, value: float
) -> None:
    torch.manual_seed(seed)
    visible = torch.eye(count, dtype=torch.bool)
    for row in range(1, count):
        visible[row] |= visible[int(torch.randint(0, row, ()))]
    segment = Segment(slot=1, start=start, visible=visible)
    query = torch.randn(HEADS, count, WIDTH, dtype=torch.float64)
    fresh = torch.randn(2, KV_HEADS, count, WIDTH, dtype=torch.float64)
    prefix = torch.randn(2, KV_HEADS, start, WIDTH, dtype=torch.float64)

    def attend(layout: Any, key: Tensor, new: Tensor) -> Tensor:
        cache = KVCache(
            num_layers=1, num_slots=2, kv_heads=KV_HEADS, rows=start + count, head_dim=WIDTH,
            dtype=torch.float64, device=torch.device("cpu"),
        )  # fmt: skip
        cache.buffer.fill_(math.nan)
        cache.write(0, 1, 0, *prefix)
        out: Tensor = layout(cache, [segment], HEADS).attend(0, query, key, new, 0.3)
        return out

    right = attend(SlotwiseLayout, *fresh)
    torch.testing.assert_close(attend(GuardedLayout, *fresh), right, rtol=0, atol=1e-12)
    bad = int(torch.randint(0, count, ()))
    spoilt = fresh.clone()
    spoilt[:, :, bad] = value
    sees = visible[:, bad]
    found = attend(GuardedLayout, *spoilt)
    torch.testing.assert_close(found[~sees], right[~sees], rtol=0, atol=1e-12)
    assert not found[sees].isfinite().any()
