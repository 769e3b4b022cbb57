"""The fast engine's lossless check: it runs what it says, and it sees faults."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.bench import app
from jetflow_core.bench.engine.settings import AUTO
from jetflow_core.bench.engine_lossless import run as run_module
from jetflow_core.bench.engine_lossless.exact import events
from jetflow_core.bench.engine_lossless.gaps import LogitGaps
from jetflow_core.bench.engine_lossless.parting import parting
from jetflow_core.bench.engine_lossless.place import Asked, Case
from jetflow_core.bench.engine_lossless.run import passed, run_engine_lossless
from jetflow_core.bench.engine_lossless.settings import EngineLosslessSettings
from jetflow_core.rounds import Finished, TorchRoundOps

NEW_TOKENS = 8
TEXTS = ("one two", "seven and eight", "b", "what comes next?")
SLOW = pytest.mark.slow


@pytest.fixture(scope="module")
def few(tiny_target_folder: Path, tiny_head_folder: Path, tmp_path_factory: Any) -> Any:
    """Settings of a small run; one drafter, one budget."""
    file = tmp_path_factory.mktemp("grid") / "few.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return EngineLosslessSettings(
        prompts=(str(file),), target=str(tiny_target_folder), head=str(tiny_head_folder),
        parts=("exact",), drafters=("random",), budgets=(16,), batch=4, page=2, prefill_rows=8,
        max_new_tokens=NEW_TOKENS, threads=1,
    )  # fmt: skip


@pytest.fixture
def own_plain_side(few: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers' generate in this process: a new one would import everything anew."""
    from jetflow_core.bench.reference import answer

    def here(settings: EngineLosslessSettings, target: str) -> dict[str, Any]:
        found = answer({
            "target": target, "dtype": "float32", "device": "cpu", "prompts": TEXTS,
            "max_new_tokens": settings.max_new_tokens,
        })  # fmt: skip
        pairs = zip(TEXTS, found["answers"], strict=True)
        return {"answers": [{"name": text, **one} for text, one in pairs]}

    monkeypatch.setattr(run_module, "_plain_side", here)
    yield


@pytest.mark.usefixtures("own_plain_side")
def test_a_cell_compares_everything_and_preempts(few: Any, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    report = run_engine_lossless(few, out)
    assert report["passed"] and report["differences"] == 0
    written = json.loads(out.read_text())
    assert written["exact"] == report["exact"]
    assert written["settings"]["prompts"] == ["few.jsonl"], "files are named and not located"
    (cell,) = report["exact"]
    assert cell["together"]["requests"] == cell["alone"]["requests"] == 6
    assert report["answers_compared"] == 12
    assert cell["together"]["most_at_once"] == 4
    for what in ("admissions", "completions", "preemptions"):
        assert cell["together"][what] > 0
    assert cell["alone"]["tau"] > 1.1
    assert {file.name for file in tmp_path.iterdir()} == {"report.json"}


@pytest.mark.usefixtures("own_plain_side")
@SLOW
@pytest.mark.parametrize("plant", ["forgets to move", "siblings see each other"])
def test_a_planted_fault_is_seen(
    few: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path, plant: str
) -> None:
    if plant == "forgets to move":
        monkeypatch.setattr(
            TorchRoundOps, "commit_path", lambda self, c, t, p, rows, features: features
        )
    else:
        build = TorchRoundOps.build_tree

        def seen(self: Any, *args: Any, **more: Any) -> Any:
            made = build(self, *args, **more)
            made.ancestors.fill_(-1)
            return made

        monkeypatch.setattr(TorchRoundOps, "build_tree", seen)
    out = tmp_path / "report.json"
    code = app.build()([
        "engine-lossless", "--parts", "exact", "--prompts", *few.prompts, "--target", few.target,
        "--head", few.head, "--device", "cpu", "--threads", "1", "--drafters", "random",
        "--budgets", "16", "--batch", "4", "--page", "2", "--max-new-tokens", str(NEW_TOKENS),
        "--out", str(out),
    ])  # fmt: skip
    assert code == 1
    report = json.loads(out.read_text())
    assert report["differences"] > 0 and not report["passed"]
    first = report["exact"][0]["differences"][0]
    assert first["expected"] != first["found"]
    assert first["logit_gap"] > 0 and first["near_tie"] is False
    shown = capsys.readouterr().out
    assert "NOT passed" in shown and "logit gap" in shown


@SLOW
@pytest.mark.usefixtures("own_plain_side")
def test_every_drafter_and_budget_and_rounding(few: Any, tmp_path: Path) -> None:
    """An interrupted run goes on."""
    settings = replace(
        few, parts=("exact", "rounding"), drafters=("head", "random"), budgets=(1, AUTO),
        page=1,
        max_new_tokens=20,
    )  # fmt: skip
    out = tmp_path / "report.json"
    run_module.write_report, kept = _broken, run_module.write_report
    try:
        with pytest.raises(OSError, match="interrupted"):
            run_engine_lossless(replace(settings, budgets=(1,)), out)
    finally:
        run_module.write_report = kept
    assert (tmp_path / "report.json.partial").exists()
    report = run_engine_lossless(settings, out)
    all_cells = (*report["exact"], *report["rounding"])
    assert [cell for cell in all_cells if not cell["passed"]] == []
    assert not (tmp_path / "report.json.partial").exists()
    cells = {(cell["drafter"], cell["budget"]): cell for cell in report["exact"]}
    assert len(cells) == 4
    assert cells["random", "auto"]["alone"]["tau"] > 2
    assert cells["head", 1]["alone"]["tau"] == 1
    rows = {each["rows"] for each in cells["random", "auto"]["chosen"]["rounds"]}
    assert len(rows) > 1 and max(rows) > 4
    assert [cell["batch"] for cell in report["rounding"]] == [1, 4]
    for cell in report["rounding"]:
        assert [(pair["drafter"], pair["rows"]) for pair in cell["pairs"]] == [
            ("head", 6), ("known text", 64),
        ]  # fmt: skip
        for pair in cell["pairs"]:
            for side in (pair["tree"], pair["chain"]):
                assert side["different"] == len(side["differences"])
                assert side["tokens_compared"] <= len(TEXTS) * 20
        assert cell["pairs"][1]["chain"]["tau"] >= cell["pairs"][1]["tree"]["tau"] > 1


def _broken(*_: Any) -> None:
    raise OSError("interrupted")


def test_what_counts_as_happening_while_others_decode() -> None:
    def gone(preemptions: int) -> Finished:
        return Finished((1,), 0, preemptions=preemptions)

    alone = events([(0,), (0,), (1,)], [gone(0), gone(0)])
    assert alone == {"batch_rounds": 3, "most_at_once": 1, "admissions": 0, "completions": 0,
                     "preemptions": 0}  # fmt: skip
    mixed = events([(0, 1), (0, 1, 2), (0, 2), (0, 1, 2)], [gone(0), gone(1), gone(0)])
    assert mixed["admissions"] == 1, "2 came; 1 came back"
    assert mixed["completions"] == 0, "nobody left for good before the last round"
    assert mixed["preemptions"] == 1


def test_a_batch_without_preemption_has_not_passed() -> None:
    cell: dict[str, Any] = {"part": "exact", "differences": [], "lacking": []}
    assert passed(cell)
    assert not passed({**cell, "lacking": ["preemptions"]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 1}, "batch 1 is out of range: 2 to"),
        ({"budgets": (300,)}, "budget 300 is out of range"),
        ({"parts": ("all",)}, "'all' is none of exact, rounding, sampling"),
        ({"drafters": ()}, "no drafters"),
        ({"rounds": 0}, "rounds 0 is out of range"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EngineLosslessSettings(**changes)


def test_another_target_needs_its_head(few: Any) -> None:
    with pytest.raises(ValueError, match="needs --head"):
        run_engine_lossless(replace(few, head=None))


def test_every_difference_is_listed_with_its_gap(few: Any) -> None:
    asked = Asked(case=Case(name="p", prompt=(5, 6, 7), answer=(1, 2, 3)), limit=2)
    gaps = LogitGaps(str(few.target), torch.float32, "cpu")
    assert asked.wanted == (1, 2)
    assert parting(asked, asked.wanted, [1, 2], gaps) is None
    found, back = (parting(asked, *each, gaps) for each in (([1, 2], [1, 9]), ([1, 9], [1, 2])))
    assert found is not None and back is not None
    assert (found["position"], found["expected"], found["found"]) == (1, 2, 9)
    assert found["logit_gap"] == -back["logit_gap"] != 0
    short = parting(asked, [1, 2], [1], gaps)
    assert short is not None and (short["found"], short["logit_gap"]) == (None, None)
