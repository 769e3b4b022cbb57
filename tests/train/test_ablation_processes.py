"""Several processes on one study: each run once, nothing waited for, one true report."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.cli import run_app
from jetflow_core.reports.files import OutputError
from jetflow_train.ablation import job, locks
from jetflow_train.ablation.folder import StudyFolder, claim
from jetflow_train.ablation.job import run_study
from jetflow_train.ablation.locks import lock, try_lock
from jetflow_train.ablation.plan import parse_plan
from jetflow_train.ablation.stored_answers import answer_sets, held_out
from jetflow_train.ablation.study import Run, Study, prepare
from jetflow_train.ablation.turns import take_turns
from jetflow_train.cli import build
from jetflow_train.files import write_json
from jetflow_train.run import open_target
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
temperatures = [0]
budgets = [4]
max-new-tokens = 6
[[variants]]
name = "base"
[[variants]]
name = "reverse"
start = "base"
changes = { loss = "reverse_kl", max-steps = 1 }
against = "base"
[[variants]]
name = "marginal"
changes = { path-rank = 0 }
against = "base"
[[variants]]
name = "late"
changes = { data = ["more"] }
"""
ONE_SEED = PLAN.replace("seeds = [0, 1]", "seeds = [0]")
NAMES = ["base-s0", "reverse-s0", "marginal-s0"]

HOLDER = """
import sys, time
from pathlib import Path
from jetflow_train.ablation.locks import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def _study(home: Path, text: str = PLAN, **data: Path) -> Study:
    prompts = [home / "one.jsonl", home / "two.jsonl"]
    return prepare(parse_plan(text, "plan", prompts), {"words": home / "words", **data})


@pytest.fixture(scope="module")
def one_seed(study_home: Path) -> Study:
    return _study(study_home, ONE_SEED)


def _results(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def _runs(out: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in run.items() if k != "seconds"} for run in _results(out)["runs"]]


def _quiet(text: str) -> None:
    assert text


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the runs whose training began, in order."""
    names: list[str] = []
    train = job.run_train

    def noted(settings: Any, **rest: Any) -> Path | None:
        names.append(settings.out.name)
        return train(settings, **rest)

    monkeypatch.setattr(job, "run_train", noted)
    return names


def _before_training(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], None]) -> None:
    """Lets ``act`` happen once, while the run ``name`` is held and before its first step."""
    train, left = job.run_train, [act]

    def first(settings: Any, **rest: Any) -> Path | None:
        if settings.out.name == name and left:
            left.pop()()
        return train(settings, **rest)

    monkeypatch.setattr(job, "run_train", first)


def test_a_lock_is_one_process_s_alone(tmp_path: Path) -> None:
    file = tmp_path / "locks" / "run.lock"
    with try_lock(file) as mine, try_lock(file) as other, try_lock(tmp_path / "else") as third:
        assert (mine, other, third) == (True, False, True)
    with try_lock(file) as mine:
        assert mine
    with pytest.raises(RuntimeError, match="of the work"), lock(file):
        raise RuntimeError("of the work")
    with try_lock(file) as mine:
        assert mine
    (tmp_path / "plain").write_text("")
    with pytest.raises(OutputError, match="cannot make"), lock(tmp_path / "plain" / "x"):
        pass


def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    file, happened, waiting = tmp_path / "x.lock", [], threading.Event()

    def second() -> None:
        waiting.set()
        with lock(file):
            happened.append("second")

    thread = threading.Thread(target=second)
    with lock(file):
        thread.start()
        assert waiting.wait(10)
        thread.join(0.1)
        assert thread.is_alive()
        happened.append("first")
    thread.join(10)
    assert happened == ["first", "second"]


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    file = tmp_path / "x.lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with try_lock(file) as mine:
            assert not mine
        process.kill()
        process.wait(10)
        with try_lock(file) as mine:
            assert mine
    assert file.exists()


def test_a_system_without_locks_holds_nothing_and_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.lock"
    with monkeypatch.context() as patch:
        patch.setattr(locks.sys, "platform", "win32")
        with try_lock(file) as mine, try_lock(file) as other, lock(file):
            assert (mine, other) == (True, True)
    assert not file.exists()


@pytest.mark.slow
def test_two_processes_do_each_run_once(
    study_home: Path,
    one_seed: Study,
    tmp_path: Path,
    trained: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, said = study_home / "target", []

    def other() -> None:
        assert run_study(one_seed, tmp_path, target, report=said.append) is False
        assert _results(tmp_path)["missing"] == ["base-s0", "reverse-s0"]

    _before_training(monkeypatch, "base-s0", other)
    assert run_study(one_seed, tmp_path, target, report=_quiet) is True
    # What begins with a head that the first still trained was left to the first.
    assert trained == ["marginal-s0", "base-s0", "reverse-s0"]
    assert said[-2:] == ["reverse-s0: not finished", "held by other processes: base-s0"]
    assert sum("answered by the target" in line for line in said) == 2
    results = _results(tmp_path)
    assert (results["complete"], [run["run"] for run in results["runs"]]) == (True, NAMES)
    assert sorted(file.stem for file in (tmp_path / "walks").iterdir()) == sorted(NAMES)
    # Whoever holds a run now has nothing left to do.
    with lock(StudyFolder(tmp_path).lock("base-s0")):
        assert run_study(one_seed, tmp_path, target, over=lambda: True, report=_quiet) is True


def test_what_was_passed_over_is_looked_at_again(one_seed: Study, tmp_path: Path) -> None:
    folder, done, other = StudyFolder(tmp_path), [], ExitStack()

    def do(run: Run) -> bool:
        with try_lock(folder.lock(run.name)) as free:
            assert not free
        done.append(run.name)
        write_json(folder.failed(run.name), {"error": "settled"})
        # The other process gives up while this one does what it could have.
        other.close()
        return True

    with other:
        other.enter_context(lock(folder.lock("base-s0")))
        assert take_turns(folder, one_seed, do) == []
    assert done == ["marginal-s0", "base-s0", "reverse-s0"]
    assert take_turns(folder, one_seed, do) == []
    assert len(done) == 3


def test_the_end_of_time_ends_all_turns(one_seed: Study, tmp_path: Path) -> None:
    folder, asked = StudyFolder(tmp_path), []

    def do(run: Run) -> bool:
        asked.append(run.name)
        return False

    with lock(folder.lock("base-s0")):
        assert take_turns(folder, one_seed, do) == ["base-s0"]
    assert take_turns(folder, one_seed, do) == []
    assert asked == ["marginal-s0", "base-s0"]


def test_a_run_that_is_cut_is_held_no_longer(
    study_home: Path, one_seed: Study, tmp_path: Path
) -> None:
    left = iter((False, False))
    target = study_home / "target"
    assert not run_study(one_seed, tmp_path, target, over=lambda: next(left, True), report=_quiet)
    assert (tmp_path / "runs" / "base-s0" / "state.pt").is_file()
    with try_lock(StudyFolder(tmp_path).lock("base-s0")) as mine:
        assert mine


@pytest.mark.slow
def test_a_start_that_was_deleted_is_refused_and_not_waited_for(
    study_home: Path, one_seed: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = study_home / "target"

    def delete() -> None:
        for name in ("head", "head-8bit"):
            (tmp_path / "runs" / "base-s0" / name).rename(tmp_path / name)

    _before_training(monkeypatch, "reverse-s0", delete)
    for _ in range(2):
        with pytest.raises(ValueError, match="base-s0"):
            run_study(one_seed, tmp_path, target, report=_quiet)


@pytest.mark.slow
def test_the_command_says_75_where_others_hold_what_is_left(
    study_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(study_home)
    (tmp_path / "plan.toml").write_text(ONE_SEED)
    words = ["ablate", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "s"), "--target",
             "target", "--workers", "1"]  # fmt: skip
    with lock(StudyFolder(tmp_path / "s").lock("base-s0")):
        assert run_app(build(), words) == 75
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == ["reverse-s0: not finished", "held by other processes: base-s0"]
    assert run_app(build(), words) == 0
    assert "held by" not in capsys.readouterr().err


def test_answers_are_written_once(study_home: Path, one_seed: Study, tmp_path: Path) -> None:
    target = open_target(study_home / "target")
    plan = one_seed.plan.evaluation
    sets = held_out(target, study_home / "target", plan)
    said: list[str] = []

    def answers(stop: Callable[[], bool]) -> list[str]:
        got = answer_sets(tmp_path, target, sets, plan, stop=stop, report=said.append)
        return [each.key for each in got]

    def other_comes_first() -> bool:
        # Between the look of the one and its lock.
        assert answers(lambda: False) == ["one 0", "two 0"]
        return False

    assert answers(other_comes_first) == ["one 0", "two 0"]
    assert sum("answered by the target" in line for line in said) == 2


def test_a_study_that_another_process_began_meanwhile_is_refused(
    study_home: Path, one_seed: Study, tmp_path: Path
) -> None:
    folder, mark = StudyFolder(tmp_path), {"weights": "0"}
    claim(folder, one_seed, mark)
    claim(folder, one_seed, mark)
    with pytest.raises(DataMismatchError, match="another plan: seeds was"):
        claim(folder, _study(study_home), mark)
    with pytest.raises(DataMismatchError, match="another target"):
        claim(folder, one_seed, {"weights": "1"})


def test_a_report_without_data_that_came_meanwhile_is_not_written(
    study_home: Path, one_seed: Study, tmp_path: Path
) -> None:
    more = _study(study_home, ONE_SEED, more=study_home / "corpus")
    target = study_home / "target"

    def other_comes() -> bool:
        if not calls:
            calls.append(1)
            run_study(more, tmp_path, target, over=lambda: True, report=_quiet)
        return True

    calls: list[int] = []
    with pytest.raises(DataMismatchError, match="begun with data called more: give it too"):
        run_study(one_seed, tmp_path, target, over=other_comes, report=_quiet)
    assert "late-s0" in _results(tmp_path)["missing"]


@pytest.mark.slow
def test_commands_at_the_same_time_share_a_study(
    study_home: Path, one_seed: Study, tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(ONE_SEED.replace('["words"]', f'["{study_home}/words"]'))
    prompts = [str(study_home / name) for name in ("one.jsonl", "two.jsonl")]
    command = [sys.executable, "-m", "jetflow_train", "ablate", str(tmp_path / "plan.toml"),
               "--target", str(study_home / "target"), "--out", str(tmp_path / "s"),
               "--workers", "1", "--prompts", *prompts]  # fmt: skip
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=240)[1] for process in both]
    codes = [process.returncode for process in both]
    assert set(codes) <= {0, 75} and 0 in codes, said
    measured = [line for text in said for line in text.splitlines() if ": measured in" in line]
    assert sorted(line.split()[1] for line in measured) == sorted(f"{name}:" for name in NAMES)
    assert _results(tmp_path / "s")["complete"]
    alone = tmp_path / "alone"
    assert run_study(one_seed, alone, study_home / "target", report=_quiet) is True
    assert _runs(tmp_path / "s") == _runs(alone)
