"""Pages: who holds them, what is written where, and that nothing else is ever touched or felt."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.rounds import Finished, HeadRound, RoundRunner
from jetflow_core.rounds.pool import PageTables, pages_in
from jetflow_core.sampling import SamplingParams

PROMPTS = [(5, 6, 7), (8, 9), tuple(range(30, 41)), (3,), (4, 4, 4, 4)]
Runner = Callable[..., RoundRunner]
Answer = Callable[..., list[Finished]]


@given(
    actions=st.lists(
        st.tuples(st.sampled_from(["reserve", "trim", "release"]), st.integers(0, 2),
                  st.integers(0, 20)),
        max_size=30,
    )
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_every_page_has_one_holder(actions: list[tuple[str, int, int]]) -> None:
    tables = PageTables(pages=7, page=4, slots=3, longest=20)
    for action, slot, rows in actions:
        before, held = tables.num_free, tables.held(slot)
        if action == "release":
            tables.release(slot)
            assert not tables.held(slot)
        elif action == "trim":
            tables.trim(slot, rows)
            assert tables.held(slot) == held[: -(-rows // 4)]
        else:
            given_some = tables.reserve(slot, rows)
            missing = max(0, -(-rows // 4) - len(held))
            assert given_some == (missing <= before)
            assert tables.num_free == before - (missing if given_some else 0)
            assert tables.held(slot)[: len(held)] == held
        tables.check()


def test_what_no_table_can_hold_is_refused() -> None:
    tables = PageTables(pages=9, page=4, slots=1, longest=20)
    with pytest.raises(ValueError, match="21 rows need 6 pages, a slot has at most 5"):
        tables.reserve(0, 21)
    for name in ("pages", "page", "slots", "longest"):
        sizes = {"pages": 1, "page": 1, "slots": 1, "longest": 1, name: 0}
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            PageTables(**sizes)


def test_memory_is_never_exceeded() -> None:
    assert pages_in(1000, page=4, row_bytes=10) == 25
    assert pages_in(1039, page=4, row_bytes=10) == 25
    with pytest.raises(ValueError, match=r"39 bytes hold no page of 4 rows of 10 bytes.*40"):
        pages_in(39, page=4, row_bytes=10)


def _surrounded(monkeypatch: pytest.MonkeyPatch, fill: float) -> list[torch.Tensor]:
    """All pools lie between guard words; they themselves begin as ``fill``."""
    guarded: list[torch.Tensor] = []
    zeros = torch.zeros

    def zeros_between(*shape: Any, **more: Any) -> torch.Tensor:
        sizes = shape[0] if shape and isinstance(shape[0], tuple | list) else shape
        if len(sizes) != 6:
            return zeros(*shape, **more)
        count = torch.Size(sizes).numel()
        whole = torch.full((count + 64,), 12345.0, **more)
        guarded.append(whole)
        return whole[32 : 32 + count].view(sizes).fill_(fill)

    monkeypatch.setattr(torch, "zeros", zeros_between)
    return guarded


@pytest.mark.slow
def test_guard_words_stay_and_what_pages_held_before_is_never_felt(
    runner: Runner, answer: Answer, head_for_tiny_target: Callable[..., Any],
    head_round: Callable[..., HeadRound], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Pages full of NaN, of target and head, with requests that come, go and are preempted."""
    params = SamplingParams(max_new_tokens=7)
    loaded = head_for_tiny_target(input_bridge=True, candidates=128, num_layers=1)

    def made() -> RoundRunner:
        return runner(head_round(loaded), pages=15, slots=4, budget=24, prefill_rows=4)

    wanted = answer(made(), PROMPTS, params)
    assert sum(each.preemptions for each in wanted) > 0
    guarded = _surrounded(monkeypatch, torch.nan)
    poisoned = made()
    monkeypatch.undo()
    assert len(guarded) == 2
    found = answer(poisoned, PROMPTS, params)
    assert [(e.tokens, e.rounds) for e in found] == [(e.tokens, e.rounds) for e in wanted]
    for whole in guarded:
        assert (whole[:32] == 12345.0).all()
        assert (whole[-32:] == 12345.0).all()
        assert whole[32:-32].isfinite().any()


def test_a_request_that_could_never_run_is_refused_before_any_work(
    runner: Runner, answer: Answer
) -> None:
    made = runner(pages=5)
    with pytest.raises(ValueError, match="request 1 may need 6 pages for 20 rows and 1 of scratch"):
        answer(made, [(1,), (1, 2)], SamplingParams(max_new_tokens=19))
    assert not made.programs.runs
    assert len(answer(made, [(1,), (1, 2)], SamplingParams(max_new_tokens=18))) == 2


def test_pages_behind_the_committed_rows_go_back(runner: Runner, scripted: Any) -> None:
    """Between rounds nobody holds more than the next round may need."""
    from jetflow_core.rounds import RoundRequest

    made = runner(scripted([(1, 2, 3) + (0,) * 40], "wrong"), budget=16, slots=1)
    request = RoundRequest.of((1, 2, 3), SamplingParams(max_new_tokens=9), eos_ids=(),
                              vocab_size=128)  # fmt: skip
    held = [len(made.tables.held(0)) for _ in made.run([request])]
    # Rows so far, those of a round under way (6), and a tree (16), in pages of 4.
    assert held[0] <= -(-(3 + 6 + 16) // 4)
    assert held[-1] == 0
