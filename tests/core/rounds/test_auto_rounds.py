"""Whole runs with ``auto`` on the CPU: the target's own text, whatever is chosen."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.engine import Engine
from jetflow_core.rounds import AutoBudget, Finished, HeadRound, RoundCosts, RoundRunner
from jetflow_core.rounds.auto import ready
from jetflow_core.rounds.auto.costs import buckets_up_to, totals_for
from jetflow_core.sampling import SamplingParams

PROMPTS = [(5, 6, 7), (8, 9), tuple(range(30, 41)), (3,), (4, 4)]
Runner = Callable[..., RoundRunner]
Answer = Callable[..., list[Finished]]


def _costs(slope: float, requests: int = 8) -> RoundCosts:
    sizes = [(r, r) for r in buckets_up_to(requests, 8)]
    sizes += [(r, t) for r, _ in sizes for t in totals_for(r, most=32, most_total=64)]
    return RoundCosts(contexts=(0,), seconds={(r, t): (1.0 + slope * (t - r),) for r, t in sizes})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Costs of tests are nobody else's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "jetflow" / "rounds"


@pytest.mark.parametrize(
    ("kind", "slope", "pages"),
    [
        ("mixed", 0.01, 18), pytest.param("first", 0.01, 400, marks=pytest.mark.slow),
        pytest.param("wrong", 5.0, 400, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_the_text_is_the_targets_own_whatever_is_chosen(
    runner: Runner, answer: Answer, scripted: Any, plain_engine: Engine,
    kind: str, slope: float, pages: int,
) -> None:  # fmt: skip
    """Requests come, go and are preempted; greedy and drawn."""
    params = [
        SamplingParams(max_new_tokens=5 + 5 * i, temperature=0.8 * (i % 2), seed=i)
        for i in range(len(PROMPTS))
    ]
    wanted = plain_engine.generate_batch(PROMPTS, params)
    texts = [(*each.prompt, *each.tokens) for each in wanted]
    auto = AutoBudget(_costs(slope), most=12, most_total=64)
    made = runner(scripted(texts, kind), budget=auto, slots=4, pages=pages)
    found = answer(made, PROMPTS, params)
    assert [tuple(each.tokens) for each in found] == [each.tokens for each in wanted]
    assert any(each.preemptions for each in found) == (pages < 400)
    told = auto.as_dict()
    chosen = {line["rows"] for line in told["rounds"]}
    if kind == "first":
        assert told["tokens"] > 2 * sum(line["rounds"] for line in told["rounds"])
    if kind == "wrong":
        assert told["reasons"]["plain pays"] > 5
    assert len(chosen) > 1
    sums = made._auto.shared.acceptance
    assert float(sums.stated.sum()) > 0


@pytest.mark.slow
def test_costs_are_measured_before_the_first_run_and_kept(
    runner: Runner, answer: Answer, head_round: Callable[..., HeadRound], own_cache: Path,
    head_for_tiny_target: Callable[..., Any], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    loaded = head_for_tiny_target(num_layers=1, candidates=8)
    params = SamplingParams(max_new_tokens=5)
    wanted = answer(runner(head_round(loaded), budget=6, slots=2), PROMPTS[:2], params)
    measured: list[int] = []
    real = ready.measured_costs

    def counted(*args: Any, **more: Any) -> RoundCosts:
        measured.append(1)
        return real(*args, **more)

    monkeypatch.setattr(ready, "measured_costs", counted)
    for times in (1, 1):
        auto = AutoBudget(most=2, most_total=4)
        made = runner(head_round(loaded), budget=auto, slots=2)
        found = answer(made, PROMPTS[:2], params)
        assert [each.tokens for each in found] == [each.tokens for each in wanted]
        assert len(measured) == times
        assert auto.costs is not None and auto.costs.requests == (1, 2)
        assert len([*own_cache.iterdir()]) == 1
        assert answer(made, PROMPTS[:2], params)[0].tokens == wanted[0].tokens
    # The measurement left nothing behind.
    state = made._state
    assert not state.live.any() and torch.isfinite(made._auto.shared.promise).all()


@pytest.mark.slow
def test_costs_of_another_device_are_measured_again(
    runner: Runner, scripted: Any, own_cache: Path
) -> None:
    made = runner(scripted([(1, 2, 3)], "first"), budget=AutoBudget(most=2), slots=1)
    made.prepare(1)
    (file,) = own_cache.iterdir()
    file.write_text(file.read_text().replace('"torch"', '"scorch"'))
    again = AutoBudget(most=2)
    runner(scripted([(1, 2, 3)], "first"), budget=again, slots=1).prepare(5)
    assert again.costs is not None and '"torch"' in file.read_text()


def test_nothing_to_prepare_without_auto(runner: Runner) -> None:
    made = runner()
    made.prepare(3)
    assert not made.programs.runs
