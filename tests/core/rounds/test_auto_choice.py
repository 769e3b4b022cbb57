"""The budget that is chosen every round, in a world of made-up seconds: nothing is timed."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
from jetflow_core.rounds import AutoBudget, Choice, LiveBatch, RoundCosts
from jetflow_core.rounds.auto.account import SHARE
from jetflow_core.rounds.auto.batch_trees import POINTS
from jetflow_core.rounds.auto.costs import buckets_up_to, totals_for
from jetflow_tree import BestFirst, Candidates
from numpy.typing import NDArray

MOST, DEPTH, WIDTH = 256, 10, 6
Seconds = Callable[[int, int], float]


class Text:
    """Contexts of one kind: the exact tree of a head, and where walks in it really end."""

    def __init__(self, best: float, *, others: float = 0.7, claim: float | None = None) -> None:
        """Makes both.

        Args:
            best: the chance of the best candidate.
            others: what the other candidates have of the rest.
            claim: what the head says of the best one; None: the truth.
        """
        stated = _table(best if claim is None else claim, others)
        ranks = np.tile(np.arange(WIDTH), (DEPTH, 1))
        tree = BestFirst().build(0, Candidates.marginal(ranks, np.log(stated)), MOST)
        self.promised = np.exp(tree.scores)
        true, chance = _table(best, others), np.ones(MOST)
        for row in range(1, MOST):
            chance[row] = chance[tree.parents[row]] * true[tree.depths[row] - 1, tree.tokens[row]]
        ends = chance.copy()
        np.subtract.at(ends, tree.parents[1:], chance[1:])
        self.ends = ends.clip(min=0.0).cumsum()
        # What a walk to a row keeps, of a tree with only so many rows.
        self.kept = np.zeros((MOST, MOST + 1), dtype=np.int64)
        for row in range(1, MOST):
            self.kept[row] = self.kept[tree.parents[row]] + (np.arange(MOST + 1) > row)


def _table(best: float, others: float) -> NDArray[np.float64]:
    shares = np.arange(2.0, WIDTH + 1) ** -1.5
    line = np.concatenate([[best], (1 - best) * others * shares / shares.sum()])
    return np.tile(line, (DEPTH, 1))


@dataclass(frozen=True)
class World:
    """Rounds of a batch whose contexts are drawn from some texts."""

    texts: tuple[Text, ...]
    seconds: Seconds
    requests: int
    seed: int = 0

    def costs(self) -> RoundCosts:
        sizes = [(r, r) for r in buckets_up_to(self.requests, 32)]
        sizes += [(r, t) for r, _ in sizes for t in totals_for(r, most=MOST, most_total=1024)]
        return RoundCosts(
            contexts=(0,), seconds={(r, total): (self.seconds(r, total),) for r, total in sizes}
        )

    def fixed(self, rounds: int, budget: int) -> float:
        """Tokens a second with trees of one size."""
        kinds, ends = self._drawn(rounds)
        kept = sum(
            int(text.kept[ends[kinds == kind], budget].sum())
            for kind, text in enumerate(self.texts)
        )
        count = rounds * self.requests
        return (count + kept) / (rounds * self.seconds(self.requests, self.requests * budget))

    def _drawn(
        self, rounds: int, only: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        draw = np.random.default_rng(self.seed)
        kinds = draw.integers(len(self.texts), size=(rounds, self.requests))
        if only is not None:
            kinds = np.full_like(kinds, only)
        where = draw.random((rounds, self.requests))
        ends = np.zeros_like(kinds)
        for kind, text in enumerate(self.texts):
            ends[kinds == kind] = text.ends.searchsorted(where[kinds == kind], side="right")
        return kinds, ends.clip(max=MOST - 1)

    def auto(self, rounds: int, budget: AutoBudget, *, only: int | None = None) -> float:
        """Tokens a second with what ``budget`` chooses, knowing every round one round late.

        With ``only`` all contexts are of this text.
        """
        kinds, ends = self._drawn(rounds, only)
        tokens, spent = 0, 0.0
        waiting: deque[tuple[Choice, int, int, NDArray[np.float64]]] = deque()
        everybody = tuple(range(self.requests))
        for kind, end in zip(kinds, ends, strict=True):
            choice = budget.share(LiveBatch(requests=everybody, slots=self.requests, context=0.0))
            assert self.requests <= choice.total <= 1024
            kept, promise = self._round(kind, end, choice.total, choice.rows[0])
            tokens += self.requests + kept
            spent += choice.seconds
            waiting.append((choice, self.requests, kept, promise))
            if len(waiting) > 1:
                budget.learn(*waiting.popleft())
        return tokens / spent

    def _round(
        self, kinds: NDArray[np.int64], ends: NDArray[np.int64], total: int, rows: int
    ) -> tuple[int, NDArray[np.float64]]:
        if rows == 1:
            return 0, np.zeros(len(POINTS) + 1)
        promised = np.stack([self.texts[kind].promised[:rows] for kind in kinds])
        order = np.argsort(-promised, axis=None, kind="stable")
        counts = np.bincount(order[:total] // rows, minlength=self.requests)
        kept = sum(
            int(self.texts[kind].kept[end, count])
            for kind, end, count in zip(kinds, ends, counts, strict=True)
        )
        mass = promised.flatten()[order].cumsum() / self.requests
        places = [*(self.requests * point for point in POINTS), total]
        return kept, mass[np.minimum(places, len(order)) - 1]


def _gpu(requests: int, total: int) -> float:
    """Flat while weights are read, then as many steps as rows; a head before every tree."""
    rows = 4e-3 + 1e-5 * requests + 3e-6 * total + 9e-6 * max(0, -(-(total - 192) // 64) * 64)
    return rows + (0.0 if total == requests else 0.8e-3 + 1.5e-5 * requests)


def _cpu(requests: int, total: int) -> float:
    """Every row costs, and the head costs as much as some rows."""
    return 0.03 + 0.004 * total + (0.0 if total == requests else 0.005 + 0.004 * requests)


SURE, MIXED, LOST = Text(0.9), Text(0.75), Text(0.05, others=0.1)
GOOD = (SURE, MIXED, Text(0.4))
TEXTS = {
    "good": GOOD, "middling": (Text(0.3), Text(0.5)), "worst": (LOST, Text(0.1, others=0.2)),
    "boasts": (Text(0.05, others=0.1, claim=0.9),),
}  # fmt: skip
BUDGETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ROUNDS = 500
FAST = {(_gpu, 8, "good"), (_cpu, 1, "good"), (_gpu, 8, "boasts"), (_gpu, 32, "worst")}


def _cases() -> list[Any]:
    every = product((_gpu, _cpu), (1, 8, 32), TEXTS)
    return [pytest.param(*case, marks=() if case in FAST else pytest.mark.slow) for case in every]


def _rounds(auto: AutoBudget, requests: int) -> Counter[int]:
    """How often each number of rows was chosen for so many requests."""
    lines = auto.as_dict()["rounds"]
    return Counter({e["rows"]: e["rounds"] for e in lines if e["requests"] == requests})


@pytest.mark.parametrize(("seconds", "requests", "texts"), _cases())
def test_no_fixed_budget_is_faster(seconds: Seconds, requests: int, texts: str) -> None:
    world = World(texts=TEXTS[texts], seconds=seconds, requests=requests)
    auto = AutoBudget(world.costs())
    found = world.auto(ROUNDS, auto)
    fixed = {budget: world.fixed(ROUNDS, budget) for budget in BUDGETS}
    plain, best = fixed[1], max(fixed.values())
    assert found >= 0.97 * best
    # What may be lost: 1 %, and once a few rounds.
    assert found >= plain * (0.99 - 8 / ROUNDS)
    told = auto.as_dict()
    rounds = _rounds(auto, requests)
    assert sum(rounds.values()) == sum(told["reasons"].values()) == ROUNDS
    if best > 1.1 * plain:
        assert found > plain and told["reasons"]["pays"] > 0.9 * ROUNDS
        assert told["expected_tokens"] == pytest.approx(told["tokens"], rel=0.15)
    if best == plain:
        assert rounds[requests] > 0.6 * ROUNDS and told["reasons"]["probe"]
    assert told["newest"][0]["rows"] == requests


def test_it_goes_back_to_plain_rounds_and_comes_again() -> None:
    """The text changes from hopeless to easy to hopeless, far apart."""
    world = World(texts=(LOST, SURE), seconds=_gpu, requests=8)
    auto = AutoBudget(world.costs())
    shares = []
    for kind in (0, 1, 0):
        before = _rounds(auto, 8)[8]
        world.auto(400, auto, only=kind)
        shares.append((_rounds(auto, 8)[8] - before) / 400)
    hopeless, easy, again = shares
    assert hopeless > 0.95 and again > 0.85
    assert easy < 0.2


def test_a_probe_costs_no_more_than_its_share_of_the_time() -> None:
    world = World(texts=(LOST,), seconds=_gpu, requests=8)
    auto = AutoBudget(world.costs())
    world.auto(1200, auto)
    told = auto.as_dict()
    plain = _gpu(8, 8)
    lost = told["seconds"] - (told["tokens"] / 8) * plain
    free = 8 * plain + 3 * max(_gpu(8, total) - plain for total in world.costs().totals(8))
    assert 0 < lost <= 2 * SHARE * told["seconds"] + free
    assert 10 < told["reasons"]["probe"] < 40


def test_nobody_is_live_any_more_and_nothing_is_learnt() -> None:
    world = World(texts=GOOD, seconds=_gpu, requests=2)
    auto = AutoBudget(world.costs())
    choice = auto.share(LiveBatch(requests=(0, 1), slots=2, context=0.0))
    auto.learn(choice, 0, 0, np.zeros(len(POINTS) + 1))
    assert auto.as_dict()["tokens"] == 0
    auto.restart()
    assert auto.as_dict()["rounds"] == []


def test_what_cannot_be_chosen_from_is_refused() -> None:
    for given in ({"most": 1}, {"most_total": 1}, {"most": 300}):
        with pytest.raises(ValueError, match="out of range"):
            AutoBudget(**given)
    with pytest.raises(RuntimeError, match="no costs"):
        AutoBudget().share(LiveBatch(requests=(0,), slots=1, context=0.0))
