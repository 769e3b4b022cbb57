"""The lossless grid, and that it sees faults."""

import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jetflow_core import session
from jetflow_core.bench import app, lossless, workers
from jetflow_core.bench.grid import Case, Task, first_difference
from jetflow_core.bench.lossless import LosslessSettings, run_lossless
from jetflow_core.bench.plain_side import Answer, PlainSideError, plain_answers
from jetflow_core.bench.workers import WorkerError, Workplace, run_tasks
from jetflow_core.cache import KVCache
from jetflow_core.engine import Generation
from jetflow_core.session import CachedSession
from jetflow_tree import Tree

NEW_TOKENS = 24
TEXTS = ("one two", "seven and eight", "b", "what comes next?")


@dataclass(frozen=True)
class Whole:
    """A grid that ran with a real process for the plain side, and what that process wrote."""

    settings: LosslessSettings
    report: dict[str, Any]
    plain: tuple[list[Answer], dict[str, Any]]

    def again(self, patch: pytest.MonkeyPatch) -> None:
        """Takes the plain side from here: each process imports torch and transformers anew."""
        patch.setattr(lossless, "plain_answers", lambda *_, **__: self.plain)


@pytest.fixture(scope="module")
def whole(
    tiny_target_folder: Path, tiny_head_folder: Path, tmp_path_factory: Any
) -> Iterator[Whole]:
    file = tmp_path_factory.mktemp("grid") / "few.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    settings = LosslessSettings(
        prompts=(str(file),),
        target=str(tiny_target_folder),
        head=str(tiny_head_folder),
        budgets=(1, 2, 16),
        max_new_tokens=NEW_TOKENS,
        threads=1,
    )
    kept: list[Any] = []

    def remembered(*arguments: Any, **options: Any) -> Any:
        # Two of them share the prompts, here where the plain side does its work once for all.
        kept.append(plain_answers(*arguments, **{**options, "processes": 2}))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lossless, "plain_answers", remembered)
        report = run_lossless(settings)
    yield Whole(settings, report, kept[0])


@pytest.mark.slow
def test_no_difference_and_every_path_was_walked(whole: Whole) -> None:
    report = whole.report
    assert report["passed"] and report["differences"] == []
    assert report["answers_compared"] == 4 * 3 * len(TEXTS)
    assert report["tokens_compared"] == 4 * 3 * len(TEXTS) * NEW_TOKENS
    cells = {(cell["drafter"], cell["budget"]): cell for cell in report["cells"]}
    assert all(cells[name, 1]["tau"] == 1.0 for name in ("head", "wrong", "random", "oracle"))
    assert cells["wrong", 16]["tau"] == 1.0
    assert cells["oracle", 16]["tau"] > 4.0
    assert cells["random", 16]["scattered_rounds"] > 0
    assert report["plain_side"]["attention"] == "sdpa"
    assert report["plain_side"]["fp32_precision"] == "ieee"
    assert report["used"]["fp32_precision"] == ["ieee"]
    assert report["plain_side"]["smallest_logit_gap"] > 0.0
    json.dumps(report, allow_nan=False)


def _forgets_to_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVCache, "compact", lambda *arguments: None)


def _siblings_see_each_other(patch: pytest.MonkeyPatch) -> None:
    def all_before(tree: Tree) -> Any:
        return np.tri(tree.num_nodes, dtype=bool)

    patch.setattr(session, "ancestor_matrix", all_before)


def _positions_by_row(patch: pytest.MonkeyPatch) -> None:
    verify = CachedSession.verify

    def moved(self: CachedSession, slots: Any, trees: Any) -> Any:
        for tree in trees:
            object.__setattr__(tree, "depths", np.arange(tree.num_nodes, dtype=np.int32))
        return verify(self, slots, trees)

    patch.setattr(CachedSession, "verify", moved)


@pytest.mark.slow
@pytest.mark.parametrize("plant", [_forgets_to_move, _siblings_see_each_other, _positions_by_row])
def test_a_planted_fault_is_seen(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plant: Any
) -> None:
    whole.again(monkeypatch)
    plant(monkeypatch)
    assert _command(whole, tmp_path / "grid.json") == 1
    report = json.loads((tmp_path / "grid.json").read_text())
    assert not report["passed"]
    assert report["answers_different"] == len(report["differences"]) > 0
    first = report["differences"][0]
    assert first["expected"] != first["found"] and first["logit_gap"] > 0.0
    assert 0 <= first["position"] < NEW_TOKENS


@pytest.mark.slow
def test_the_command_says_what_it_compared(
    whole: Whole, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    whole.again(monkeypatch)
    assert _command(whole, tmp_path / "grid.json", "--slots", "3") == 0
    assert "4 answers, 96 tokens in float32: all identical" in capsys.readouterr().out
    assert json.loads((tmp_path / "grid.json").read_text())["used"]["num_slots"] == 3


def _command(whole: Whole, out: Path, *more: str) -> Any:
    settings = whole.settings
    return app.build()([
        "lossless", "--prompts", *settings.prompts, "--target", str(settings.target), "--head",
        str(settings.head), "--device", "cpu", "--threads", "1", "--max-new-tokens",
        str(NEW_TOKENS), "--drafters", "random", "--budgets", "16", "--out", str(out), *more,
    ])  # fmt: skip


def test_a_short_answer_differs_where_it_ends() -> None:
    case = Case("set", "p", "text", Answer((1,), (5, 6, 7), (0.5, 0.25, 0.125)))
    task = Task("head", 2, (0,))

    def found(*tokens: int) -> Any:
        return first_difference(task, case, Generation((1,), tokens, "", "stop", 0, (), ()))

    assert found(5, 6, 7) is None
    short = found(5, 6)
    assert (short.position, short.expected, short.found, short.logit_gap) == (2, 7, None, 0.125)
    long = found(5, 6, 7, 8)
    assert (long.position, long.expected, long.found, long.logit_gap) == (3, None, 8, None)


@pytest.mark.slow
def test_processes_share_the_work(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def answered(*_: Any, processes: int, **__: Any) -> Any:
        asked.append(processes)
        return whole.plain

    monkeypatch.setattr(lossless, "plain_answers", answered)
    report = run_lossless(
        replace(whole.settings, processes=2, slots=3, budgets=(2, 16), drafters=("head", "random"))
    )
    assert asked == [2]
    assert report["passed"]
    assert report["answers_compared"] == 2 * 2 * len(TEXTS)
    assert report["used"]["processes"] == 2 and report["used"]["num_slots"] == 3


@pytest.mark.slow
def test_a_failed_process_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlainSideError, match=r"the plain side failed: .*nowhere"):
        plain_answers(["a"], target=str(tmp_path / "nowhere"), dtype="float32", device="cpu",
                      max_new_tokens=2, threads=1, processes=1, progress=lambda: None)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_failed_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Forks, which import nothing; those that work, above, are spawned.
    forks = multiprocessing.get_context("fork")
    monkeypatch.setattr(workers.multiprocessing, "get_context", lambda _: forks)
    place = Workplace(target=str(tmp_path / "nowhere"), head=None, device="cpu", dtype="float32",
                      max_new_tokens=2, num_slots=1, threads=1)  # fmt: skip
    tasks = [Task("wrong", 2, (0,)), Task("oracle", 2, (0,))]
    with pytest.raises(WorkerError, match=r"TargetLoadError: cannot load a target from .*nowhere"):
        list(run_tasks(place, [], tasks, processes=2))


def test_a_wrong_head_shows_before_any_work(tmp_path: Path) -> None:
    settings = LosslessSettings(target="nowhere", head=str(tmp_path))
    with pytest.raises(ValueError, match=r"config\.json"):
        run_lossless(settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "int8"}, "dtype 'int8' is unknown"),
        ({"device": "tpu"}, "device 'tpu' cannot be used here"),
        ({"processes": 0}, "processes 0 is out of range: at least 1"),
        ({"max_new_tokens": 0}, "max_new_tokens 0 is out of range: at least 1"),
    ],
)
def test_bad_settings_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LosslessSettings(**change)
