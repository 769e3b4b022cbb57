"""Whole studies on a tiny target: cut short and gone on with, shared trainings, one report."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.cli import run_app
from jetflow_core.head.checkpoint import load_head
from jetflow_train.ablation.figures import ALL_SETS, Counts, figures, ratio
from jetflow_train.ablation.folder import StudyFolder
from jetflow_train.ablation.job import run_study
from jetflow_train.ablation.plan import parse_plan
from jetflow_train.ablation.plots import panels
from jetflow_train.ablation.study import Study, prepare
from jetflow_train.ablation.table import table
from jetflow_train.cli import build
from jetflow_train.guard import DivergedError
from jetflow_train.shards import DataMismatchError

PLAN = """
seeds = [0, 1]
[train]
data = ["words"]
max-steps = 2
layers = 1
block-size = 4
path-rank = 2
rows = 2
width = 24
anchors = 3
chunks = 1
[eval]
prompts = ["one.jsonl", "two.jsonl"]
limit = 3
temperatures = [0, 1.0]
budgets = [2, 8]
max-new-tokens = 8
[[variants]]
name = "base"
[[variants]]
name = "marginal"
changes = { path-rank = 0 }
against = "base"
[[variants]]
name = "children"
of = "base"
builder = "all-children"
against = "base"
[[variants]]
name = "chain"
of = "marginal"
builder = "chain"
[[variants]]
name = "reverse"
start = "base"
changes = { loss = "reverse_kl", max-steps = 1 }
against = "base"
[[variants]]
name = "filled"
changes = { prefix-fill = 0.5 }
against = "base"
[[variants]]
name = "twice"
of = "filled"
builder = "second-pass"
against = "base"
[[variants]]
name = "late"
changes = { data = ["corpus"] }
"""


@pytest.fixture(scope="module")
def home(study_home: Path) -> Path:
    return study_home


def _study(home: Path, text: str = PLAN, **data: Path) -> Study:
    prompts = [home / "one.jsonl", home / "two.jsonl"]
    return prepare(parse_plan(text, "plan", prompts), {"words": home / "words", **data})


def _go(home: Path, out: Path, study: Study, over: Callable[[], bool] = lambda: False) -> bool:
    return run_study(study, out, home / "target", over=over, report=_quiet)


def _quiet(text: str) -> None:
    assert text


class AfterCalls:
    """A clock that runs out after so many looks at it."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.fixture(scope="module")
def whole(home: Path) -> Path:
    """A study in one go."""
    out = home / "whole"
    assert _go(home, out, _study(home)) is True
    return out


def _results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def _timeless(results: dict[str, Any]) -> dict[str, Any]:
    kept = copy.deepcopy({k: v for k, v in results.items() if k != "provenance"})
    for run in kept["runs"]:
        del run["seconds"]
    return kept


@pytest.mark.slow
def test_a_report_of_a_study(whole: Path, home: Path) -> None:
    results = _results(whole)
    assert (results["format"], results["complete"]) == ("jetflow-ablation/1", True)
    assert (results["missing"], results["failed"]) == ([], {})
    assert results["not_run"] == {"late": "no data called corpus"}
    assert str(home) not in json.dumps(results)
    assert [(r["variant"], r["seed"], r["run"]) for r in results["runs"]][:5] == [
        ("base", 0, "base-s0"), ("children", 0, "base-s0"), ("marginal", 0, "marginal-s0"),
        ("chain", 0, "marginal-s0"), ("reverse", 0, "reverse-s0"),
    ]  # fmt: skip
    for run in results["runs"]:
        cells = [(p["set"], p["temperature"], p["budget"]) for p in run["policies"]]
        assert cells == [(s, t, b) for s in ("one", "two") for t in (0.0, 1.0) for b in (2, 8)]
        for policy in run["policies"]:
            assert len(policy["tokens"]) == len(policy["rounds"]) == 3 - (policy["set"] == "two")
            assert policy["tau"] == sum(policy["tokens"]) / sum(policy["rounds"])
    told = {(each["set"], each["temperature"]): each for each in results["answers"]}
    assert set(told) == {(s, t) for s in ("one", "two") for t in (0.0, 1.0)}
    groups = [(g["set"], g["temperature"]) for g in results["figures"]]
    assert sorted(groups) == sorted((s, t) for s in ("one", "two", ALL_SETS) for t in (0.0, 1.0))
    assert results["figures"] == figures(results["plan"], results["runs"])
    assert all((whole / "runs" / name / "head-8bit").is_dir() for name in ("base-s0", "reverse-s1"))


@pytest.mark.slow
def test_a_finished_study_is_not_touched_again(whole: Path, home: Path, tmp_path: Path) -> None:
    small = shutil.copytree(whole, tmp_path / "small", ignore=shutil.ignore_patterns("head*"))
    assert _go(home, small, _study(home), over=lambda: True) is True
    assert _results(small)["runs"] == _results(whole)["runs"]
    files = [f for part in ("runs", "walks", "answers") for f in (whole / part).rglob("*")]
    before = {file: file.stat().st_mtime_ns for file in files}
    # Not even time is needed.
    assert _go(home, whole, _study(home), over=lambda: True) is True
    assert {file: file.stat().st_mtime_ns for file in files} == before


@pytest.mark.slow
def test_variants_of_the_evaluation_share_their_training(whole: Path) -> None:
    assert sorted(each.name for each in (whole / "runs").iterdir()) == [
        f"{name}-s{seed}" for name in ("base", "filled", "marginal", "reverse") for seed in (0, 1)
    ]
    runs = _results(whole)["runs"]
    by_name = {(run["variant"], run["seed"]): run for run in runs}
    for one, other in (("base", "children"), ("marginal", "chain"), ("filled", "twice")):
        mine, theirs = by_name[one, 1], by_name[other, 1]
        assert mine["weights_sha256"] == theirs["weights_sha256"]
        assert {p["builder"] for p in mine["policies"]} == {"exact"}
        assert len({p["builder"] for p in theirs["policies"]}) == 1
    assert all(p["head_slots"] == 4 for p in by_name["filled", 0]["policies"])
    twice = by_name["twice", 0]["policies"]
    assert {(p["builder"], p["budget"], p["head_slots"]) for p in twice} == {
        ("second-pass", 2, 8), ("second-pass", 8, 20),
    }  # fmt: skip
    start = json.loads((whole / "runs/reverse-s1/start.json").read_text())["start_head"]
    assert start["sha256"] == by_name["base", 1]["weights_sha256"]
    assert by_name["base", 0]["weights_sha256"] != by_name["base", 1]["weights_sha256"]


@pytest.mark.slow
def test_the_table_holds_the_figures_of_the_report(whole: Path) -> None:
    results = _results(whole)
    page = (whole / "table.md").read_text()
    assert page == table(results)
    cells = re.findall(r"[0-9.]+ \([^)]*\)", page)
    wanted = []
    for group in results["figures"]:
        budgets = [[each for each in row["budgets"]] for row in group["variants"]]
        for each in (each for row in budgets for each in row):
            low, high = each["tau_interval"]
            seeds = f"{min(each['tau_by_seed']):.2f}-{max(each['tau_by_seed']):.2f}"
            wanted.append(f"{each['tau']:.2f} ({low:.2f}-{high:.2f}; {seeds})")
        for each in (each["ratio"] for row in budgets for each in row if each["ratio"]):
            low, high = each["interval"]
            seeds = f"{min(each['by_seed']):.3f}-{max(each['by_seed']):.3f}"
            wanted.append(f"{each['ratio']:.3f} ({low:.3f}-{high:.3f}; {seeds})")
    assert [each for each in cells if ";" in each] == wanted
    assert "- late: not run: no data called corpus" in page
    assert "| marginal | path-rank 0 | base |" in page
    assert "| children | the head of base, trees: all-children | base | 4 |" in page
    assert "| filled | prefix-fill 0.5 | base | 4 |" in page
    assert "| twice | the head of filled, trees: second-pass | base | 8 20 |" in page
    assert "| late | data corpus |  |  |" in page


@pytest.mark.slow
def test_pictures_show_each_variant_beside_its_baseline(whole: Path, home: Path) -> None:
    assert panels(_results(whole)["plan"]) == [
        ("base", ["marginal", "children", "reverse", "filled", "twice"]), ("chain", []),
        ("late", []),
    ]  # fmt: skip
    assert run_study(_study(home), whole, home / "target", plots=True, report=_quiet)
    drawn = sorted((whole / "plots").iterdir())
    assert [file.name for file in drawn] == [
        f"tau-{name}-{t}.png" for name in ("all-sets", "one", "two") for t in (0, 1)
    ]
    assert all(file.read_bytes()[:4] == b"\x89PNG" for file in drawn)


def test_a_part_of_a_picture_shows_few_variants() -> None:
    names = [f"v{n}" for n in range(7)]
    variants = [{"name": "base"}, *({"name": name, "against": "base"} for name in names)]
    assert panels({"variants": variants}) == [("base", names[:5]), ("base", names[5:])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("max-steps = 2", "max-steps = 4", "train.max-steps was 2, now it is 4"),
        ("path-rank = 0", "path-rank = 1", "variants.marginal.changes.path-rank was 0, now it is"),
        ("seeds = [0, 1]", "seeds = [0]", "seeds was [0, 1], now it is [0]"),
        ("[2, 8]", "[2, 4]", "eval.budgets was [2, 8], now it is [2, 4]"),
        ("clip = 2.0\n", "", "train.clip was nothing, now it is 2.0"),
        ('name = "late"', 'name = "last"', "variants was ['base', 'marginal', 'children', "),
    ],
)
def test_a_changed_plan_is_refused(
    before: str, after: str, why: str, whole: Path, home: Path
) -> None:
    if not after:
        before, after = "layers = 1\n", f"layers = 1\n{before}"
    with pytest.raises(DataMismatchError, match="was begun with another plan: ") as refused:
        _go(home, whole, _study(home, PLAN.replace(before, after)))
    assert why in str(refused.value)


@pytest.mark.slow
def test_other_data_and_other_prompts_are_refused(whole: Path, home: Path) -> None:
    plan = parse_plan(PLAN, "plan", [home / "one.jsonl", home / "two.jsonl"])
    with pytest.raises(DataMismatchError, match="was begun with other data called words"):
        _go(home, whole, prepare(plan, {"words": home / "corpus"}))
    (home / "else").mkdir()
    (home / "else/one.jsonl").write_text((home / "two.jsonl").read_text())
    other = parse_plan(PLAN, "plan", [home / "else/one.jsonl", home / "two.jsonl"])
    with pytest.raises(DataMismatchError, match=r"one\.jsonl was"):
        _go(home, whole, prepare(other, {"words": home / "words"}))


@pytest.mark.slow
def test_a_damaged_answer_is_refused(home: Path, tmp_path: Path) -> None:
    text = PLAN.replace("seeds = [0, 1]", "seeds = [0]")
    study = _study(home, text)
    # Far enough for the answers, not for a second training.
    assert _go(home, tmp_path, study, over=AfterCalls(12)) is False
    file = tmp_path / "answers/tokens-000001.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(DataMismatchError, match="differs from the checksum"):
        _go(home, tmp_path, study)


@pytest.mark.slow
def test_a_study_in_pieces_equals_one_in_one_go(whole: Path, home: Path, tmp_path: Path) -> None:
    study, calls, halves, walks = _study(home), 0, 0, set()
    while not _go(home, tmp_path, study, over=AfterCalls((2, 3, 12)[calls % 3])):
        results = _results(tmp_path)
        assert not results["complete"]
        assert results["missing"]
        assert (tmp_path / "table.md").read_text() == table(results)
        halves += sum(
            not StudyFolder(tmp_path).finished(state.parent.name)
            for state in tmp_path.glob("runs/*/state.pt")
        )
        walks |= {file.name for file in tmp_path.glob("walks/*.begun.json")}
        calls += 1
        assert calls < 60
    assert calls > 4
    # Some calls ended in the middle of a training, some between the sets of a measuring.
    assert halves > 1 and walks
    assert not list(tmp_path.glob("walks/*.begun.json"))
    assert _timeless(_results(tmp_path)) == _timeless(_results(whole))
    for run in (whole / "runs").iterdir():
        mine, theirs = (load_head(f / "head").head for f in (run, tmp_path / "runs" / run.name))
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.slow
def test_data_may_come_later_and_may_not_go(home: Path, tmp_path: Path) -> None:
    text = PLAN.replace("seeds = [0, 1]", "seeds = [0]").replace("max-steps = 2", "max-steps = 3")
    assert _go(home, tmp_path, _study(home, text), over=lambda: True) is False
    assert _go(home, tmp_path, _study(home, text, corpus=home / "corpus")) is True
    results = _results(tmp_path)
    assert results["not_run"] == {}
    assert "late" in {run["variant"] for run in results["runs"]}
    with pytest.raises(DataMismatchError, match="was begun with data called corpus: give it too"):
        _go(home, tmp_path, _study(home, text))


@pytest.mark.slow
def test_a_run_that_comes_to_nothing_stops_no_other(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jetflow_train.ablation import job

    train = job.run_train

    def once(settings: Any, **rest: Any) -> Path | None:
        if settings.out.name == "base-s0":
            raise DivergedError("no finite gradient")
        return train(settings, **rest)

    monkeypatch.setattr(job, "run_train", once)
    text = PLAN.replace("seeds = [0, 1]", "seeds = [0]")
    assert _go(home, tmp_path, _study(home, text)) is True
    results = _results(tmp_path)
    assert results["failed"] == {
        "base-s0": "no finite gradient",
        "reverse-s0": "it starts with base: no finite gradient",
    }
    told = [run["variant"] for run in results["runs"]]
    assert told == ["marginal", "chain", "filled", "twice"]
    assert "- base-s0: failed: no finite gradient" in (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_the_command_says_75_until_nothing_is_missing(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(home)
    text = PLAN.partition('[[variants]]\nname = "children"')[0]
    (tmp_path / "plan.toml").write_text(text.replace("seeds = [0, 1]", "seeds = [0]"))
    words = ["ablate", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "s"),
             "--target", "target", "--workers", "1"]  # fmt: skip
    assert run_app(build(), [*words, "--max-seconds", "0"]) == 75
    assert not StudyFolder(tmp_path / "s").run("base-s0").exists()
    assert "base-s0: not finished" in capsys.readouterr().err
    assert run_app(build(), words) == 0
    assert "2/2 marginal-s0: measured in" in capsys.readouterr().err
    assert run_app(build(), [*words, "--max-seconds", "0"]) == 0


def test_a_variant_beside_itself_is_exactly_one() -> None:
    rng = np.random.default_rng(0)
    mine = Counts(
        seeds=(0, 3), tokens=np.full((2, 9), 20), rounds=rng.integers(3, 20, (2, 9), dtype=np.int64)
    )
    found = ratio(mine, mine)
    assert found == {"ratio": 1.0, "interval": [1.0, 1.0], "seeds": [0, 3], "by_seed": [1.0, 1.0]}


def test_ratios_are_of_shared_seeds_alone() -> None:
    tokens = np.full((2, 2), 12)
    mine = Counts(seeds=(0, 1), tokens=tokens, rounds=np.array([[4, 4], [1, 1]]))
    other = Counts(seeds=(0,), tokens=tokens[:1], rounds=np.array([[6, 6]]))
    found = ratio(mine, other)
    assert found is not None
    assert (found["ratio"], found["seeds"], found["by_seed"]) == (1.5, [0], [1.5])
    assert ratio(mine, None) is None
    assert ratio(mine, Counts(seeds=(7,), tokens=tokens[:1], rounds=other.rounds)) is None
    with pytest.raises(ValueError, match="over other texts"):
        ratio(mine, Counts(seeds=(0,), tokens=tokens[:1] + 1, rounds=other.rounds))
