"""Budget ``auto`` for vLLM's batches, in a world of made-up costs and texts: nothing is timed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.head.config import HeadConfig
from jetflow_core.rounds import AutoBudget, Choice, LiveBatch, RoundCosts
from jetflow_core.rounds.auto.costs import buckets_up_to, totals_for
from jetflow_serve.auto.costs import every_count
from jetflow_serve.auto.sharing import AutoShares, EvenShares
from jetflow_serve.drafts import Drafts, Picked
from jetflow_serve.options import ServeOptions
from jetflow_serve.reasons import Choice as Shaped
from jetflow_serve.reasons import Shape
from jetflow_serve.stage import Staged
from jetflow_tree import BestFirst, Candidates, share_budget, walk

DEPTH, WIDTH, MOST = 5, 4, 32
HEAD = HeadConfig(
    hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
    vocab_size=50, block_size=6, num_target_layers=4, target_layer_ids=(3,), mask_token_id=1,
    candidates=WIDTH,
)  # fmt: skip
Seconds = Callable[[int, int], float]


def _costs(seconds: Seconds, counts: tuple[int, ...]) -> RoundCosts:
    sizes = [(r, r) for r in counts]
    sizes += [(r, t) for r in counts for t in totals_for(r, most=MOST, most_total=256)]
    return RoundCosts(contexts=(0,), seconds={(r, t): (seconds(r, t),) for r, t in sizes})


def _line(best: float) -> np.ndarray:
    others = 0.5 ** np.arange(1, WIDTH)
    return np.concatenate([[best], (1 - best) * others])


@dataclass(frozen=True)
class World:
    """Requests whose next tokens are drawn by one law, with a head that states another."""

    seconds: Seconds
    truth: float
    claim: float
    requests: int = 4
    budgets: tuple[object, ...] = ()

    def shares(self) -> AutoShares:
        counts = tuple(buckets_up_to(self.requests, 64, factor=4))
        costs = every_count(_costs(self.seconds, counts))
        return AutoShares(AutoBudget(costs, most=MOST, most_total=256), DEPTH)

    def run(self, steps: int) -> tuple[float, float, Drafts]:
        """Tokens, seconds, and what was drafted."""
        draw = np.random.default_rng(3)
        drafts = Drafts(HEAD, ServeOptions(budget="auto"), 1 << 20, self.shares())
        law = _line(self.truth)
        tokens, spent = 0.0, 0.0
        for step in range(steps):
            rows = 0
            for number in range(self.requests):
                name = str(number)
                tree = drafts.trees.pop(name, None)
                rows += 1 if tree is None else tree.num_nodes
                tokens += 1
                if tree is not None and tree.num_nodes > 1:
                    truth = draw.choice(WIDTH + 1, size=DEPTH + 1, p=[*law, 1 - law.sum()]) + 1
                    kept = walk(tree, truth[tree.depths])
                    drafts.verified(Staged(name, 0, 0, tree), kept, 0)
                    tokens += len(kept.nodes)
            spent += self.seconds(self.requests, rows)
            asks = drafts.plan([self._picked(n, step) for n in range(self.requests)], MOST - 1)
            drafts.grow(asks, [self._stated() for _ in asks])
        return tokens, spent, drafts

    def _picked(self, number: int, step: int) -> Picked:
        own = dict(enumerate(self.budgets)).get(number)
        if own == "off":
            shape = Shaped(Shape.PLAIN, "off")
        else:
            shape = Shaped(Shape.TREE, budget=own if isinstance(own, int) else None)
        return Picked(str(number), number, 0, step, shape, 0.0)

    def _stated(self) -> Candidates:
        tokens = np.tile(np.arange(1, WIDTH + 1), (DEPTH, 1))
        return Candidates.marginal(tokens, np.tile(np.log(_line(self.claim)), (DEPTH, 1)))


def _flat(requests: int, rows: int) -> float:
    return 0.01 + 1e-5 * rows + (0.001 if rows > requests else 0.0)


def _steep(requests: int, rows: int) -> float:
    return 0.002 + 0.004 * rows


@pytest.mark.parametrize(
    "world",
    [
        World(_steep, 0.1, 0.1),
        World(_steep, 0.05, 0.9),
        World(_flat, 0.02, 0.95),
        World(_flat, 0.8, 0.8),
        World(_steep, 0.6, 0.6, requests=7),
        World(_steep, 0.05, 0.9, requests=7, budgets=("off", 4, 2)),
    ],
    ids=["lost", "boasts", "flat boasts", "good", "seven", "mixed"],
)
def test_never_slower_than_plain_decoding_but_for_what_trying_costs(world: World) -> None:
    steps = 150
    tokens, spent, _ = world.run(steps)
    plain = world.seconds(world.requests, world.requests)
    dearest = world.seconds(world.requests, min(MOST * world.requests, 256)) - plain
    # The account's own bound: two purses of half a percent, and what is free at the start.
    lent = 8 * plain + 3 * dearest
    assert spent <= tokens / world.requests * plain * 1.01 + lent + dearest


def test_trees_where_they_pay() -> None:
    world = World(_flat, 0.8, 0.8)
    tokens, spent, drafts = world.run(100)
    plain = world.requests / world.seconds(world.requests, world.requests)
    assert tokens / spent > 2.0 * plain
    assert drafts.counters.auto_steps["pays"] > 75


def test_a_request_keeps_its_own_budget() -> None:
    world = World(_flat, 0.8, 0.8, budgets=("off", 3))
    drafts = world.run(60)[2]
    names = {name: tree.num_nodes for name, tree in drafts.trees.items()}
    assert "0" not in names
    assert names["1"] <= 3 < max(names["2"], names["3"])
    assert drafts.counters.to_dict()["reasons"] == {"off": 60}


class _Always(AutoBudget):
    """Gives the same rows to every step."""

    def __init__(self, rows: int, total: int) -> None:
        super().__init__(_costs(_flat, (1, 4, 16)), most=MOST, most_total=256)
        self._rows, self._all = rows, total

    def share(self, batch: LiveBatch) -> Choice:
        live = len(batch.requests)
        return Choice(
            rows=(self._rows,) * live, total=self._all, seconds=1.0, plain_seconds=1.0, tokens=1.0,
            why="pays",
        )  # fmt: skip


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 1 << 30))
@settings(max_examples=40, deadline=None)
def test_shares_are_those_of_one_heap(requests: int, more: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    total = requests + more
    tables = []
    for _ in range(requests):
        # Coarse scores, so that there are ties to settle.
        table = -draw.integers(1, 5, (DEPTH, 1, WIDTH)).astype(float)
        tables.append(
            Candidates(np.tile(np.arange(1, WIDTH + 1), (DEPTH, 1)), table - np.log(WIDTH))
        )
    shares = AutoShares(_Always(total, total), DEPTH)
    names = [str(number) for number in range(requests)]
    assert shares.begin(names, 0.0, {}) == total
    grown = [BestFirst().build(7, table, total) for table in tables]
    cut = shares.cut(dict(zip(names, zip(grown, tables, strict=True), strict=True)))
    for mine, exact in zip(cut.values(), share_budget([7] * requests, tables, total), strict=True):
        assert mine.tokens.tolist() == exact.tokens.tolist()
        assert mine.parents.tolist() == exact.parents.tolist()


def test_scores_follow_what_was_kept() -> None:
    world = World(_flat, 0.3, 0.9)
    shares = world.run(80)[2].sharing
    assert shares is not None
    (believed,) = shares.calibrated([world._stated()])
    assert 0.15 < np.exp(believed.log_probs[0, 0, 0]) < 0.5
    assert shares.calibrated([]) == []


def test_costs_between_those_measured() -> None:
    measured = RoundCosts(
        contexts=(0, 100),
        seconds={
            (1, 1): (1.0, 2.0), (1, 4): (1.5, 2.5), (1, 8): (2.0, 3.0), (1, 2): (1.2, 2.2),
            (4, 4): (4.0, 5.0), (4, 8): (5.0, 6.0), (4, 16): (8.0, 9.0),
        },
    )  # fmt: skip
    every = every_count(measured)
    assert every.requests == (1, 2, 3, 4)
    for size, seconds in measured.seconds.items():
        assert every.seconds[size] == seconds
    assert every.seconds[3, 3] == pytest.approx((3.0, 4.0))
    assert every.seconds[3, 8] == pytest.approx((4.0, 5.0))
    # Rows that only one request was measured with: as much dearer as 8 rows are.
    assert every.seconds[3, 4] == pytest.approx((3.5, 4.5))
    assert every.seconds[3, 16] == (8.0, 9.0)
    assert (3, 2) not in every.seconds
    alone = RoundCosts(contexts=(0,), seconds={(1, 1): (1.0,), (1, 2): (1.5,)})
    assert every_count(alone) == alone


def test_even_shares() -> None:
    even = EvenShares(8, 11)
    names = ["a", "b", "c"]
    assert even.begin(names, 0.0, {}) == 8
    table = World(_flat, 0.5, 0.5)._stated()
    trees = {name: (BestFirst().build(1, table, 8), table) for name in names}
    assert [tree.num_nodes for tree in even.cut(trees).values()] == [4, 4, 3]
    assert even.calibrated([table]) == [table]
