"""Long sampling runs: guard words, memory that stays, and seeds."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.bench.engine_lossless import sampling
from jetflow_core.bench.engine_lossless.guards import Guards, bytes_in_use
from jetflow_core.bench.engine_lossless.rounding import chance_of_more
from jetflow_core.bench.engine_lossless.run import passed, run_engine_lossless
from jetflow_core.bench.engine_lossless.sampling import Mark, memory_growth, sampling_cell
from jetflow_core.bench.engine_lossless.settings import EngineLosslessSettings
from jetflow_core.rounds import TorchRoundOps
from jetflow_core.stacks import StackShape

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_objects() -> Iterator[None]:
    """What is there already is not looked at: modules alone are a million objects."""
    gc.freeze()
    yield
    gc.unfreeze()


SMALL = StackShape(
    vocab_size=32, hidden_size=32, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=1,
    head_dim=16, max_positions=256, rope_theta=1e4, head_norms=True,
)  # fmt: skip


def _shorter(patch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("SHAPE", SMALL), ("_CANDIDATES", 8), ("_SLOTS", 3), ("_REQUESTS", 4), ("_ANSWER", 12),
        ("_PROMPT", 8), ("_ROWS", 12), ("_PAGES_EACH", 4), ("_PAGE", 4), ("_MARK_FROM", 8),
    ):  # fmt: skip
        patch.setattr(sampling, name, value)


def test_sampled_rounds_leave_their_surroundings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _shorter(monkeypatch)
    told: list[int] = []
    cell = sampling_cell(CPU, torch.float32, 20, told.append)
    assert passed({"part": "sampling", **cell}), cell
    assert cell["rounds"] == sum(told) >= 20
    assert cell["guards"]["tensors"] > 15 and cell["guards"]["broken"] == []
    assert cell["same_seed"] == {"requests": 8, "equal_to_plain_rounds": 8}
    assert cell["tau"] > 1.02 and cell["drafts_refused"] == 0
    assert len(cell["memory"]["marks"]) > 1 and cell["memory"]["growth_bytes"] <= 0


def test_a_row_too_many_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    _shorter(monkeypatch)
    base = TorchRoundOps.advance

    def careless(lines: Any, *args: Any) -> Any:
        record = lines.record
        # Plain rounds, which are not guarded, have nothing before theirs.
        if record.storage_offset():
            record.as_strided((1,), (1,), record.storage_offset() - 1).fill_(7)
        return base(lines, *args)

    monkeypatch.setattr(TorchRoundOps, "advance", staticmethod(careless))
    cell = sampling_cell(CPU, torch.float32, 4)
    assert cell["guards"]["broken"] == ["4 bytes before int32 [3, 13]"]
    assert not passed({"part": "sampling", **cell})


def test_guards_keep_what_was_made() -> None:
    guards = Guards(CPU)
    with guards:
        made = torch.zeros(3, 2, dtype=torch.int32) + 5
        flags = torch.ones(3, dtype=torch.bool)
        torch.zeros(0)
    assert made.tolist() == [[5, 5]] * 3 and flags.all()
    assert guards.count == 3 and guards.guarded_bytes == 24 + 24 + 3
    assert guards.broken() == []
    made.as_strided((1,), (1,), made.storage_offset() + 6).fill_(0)
    assert guards.broken() == ["4 bytes behind int32 [3, 2]"]


def test_memory_in_use_is_that_of_live_tensors() -> None:
    before = bytes_in_use(CPU)
    held = torch.zeros(1000)
    view = held[:10]
    assert bytes_in_use(CPU) - before == 4000
    del held, view
    assert bytes_in_use(CPU) == before


def test_memory_may_only_grow_by_captures() -> None:
    def marks(*each: tuple[int, int]) -> list[Mark]:
        return [Mark(rounds=i, bytes=size, graphs=graphs) for i, (size, graphs) in enumerate(each)]

    assert memory_growth(marks((100, 3), (100, 3), (90, 3))) == (True, 0)
    assert memory_growth(marks((100, 3), (120, 4), (120, 4))) == (True, 20)
    assert memory_growth(marks((100, 3), (101, 3))) == (False, 1)


def test_the_chance_of_more_differences() -> None:
    def side(different: int, tokens: int) -> dict[str, Any]:
        return {"different": different, "tokens_compared": tokens}

    assert chance_of_more(side(0, 100), side(0, 100)) == 1.0
    assert chance_of_more(side(2, 100), side(0, 100)) == 0.25
    assert (
        chance_of_more(side(9, 100), side(0, 100))
        < 0.01
        < chance_of_more(side(9, 900), side(0, 100))
    )


@pytest.mark.slow
def test_the_whole_part_in_both_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _shorter(monkeypatch)
    settings = EngineLosslessSettings(parts=("sampling",), rounds=150, threads=1)
    report = run_engine_lossless(settings, tmp_path / "sampling.json")
    assert report["passed"], report["sampling"]
    assert [cell["dtype"] for cell in report["sampling"]] == ["float32", "bfloat16"]
    assert all(cell["preemptions"] > 0 for cell in report["sampling"])
    assert report["plain_side"]["prompts"] == 0
