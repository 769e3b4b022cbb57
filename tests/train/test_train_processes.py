"""Two processes take the steps of one, with any sharding, and end together."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_train.schedule import Horizon

SCRIPT = Path(__file__).with_name("process_run.py")


@pytest.fixture(scope="module")
def runs(
    new_run: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, set[tuple[str, ...]]]:
    """A folder with the runs of one process and of two, and what the two said."""
    out = tmp_path_factory.mktemp("runs")
    new_run(out / "one").run(Horizon(steps=4), log_every=1, report=_quiet)
    new_run(out / "half-one").run(Horizon(steps=4), stop_after=2, report=_quiet)
    shutil.copytree(out / "half-one", out / "from-one")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
               "--nproc-per-node=2", str(SCRIPT), str(out)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    lines = [(out / f"said-{rank}.txt").read_text().splitlines() for rank in (0, 1)]
    return out, {tuple(line.split()) for line in (*lines[0], *lines[1])}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whole", "head", "all"])
def test_two_processes_take_the_steps_of_one(
    runs: tuple[Path, set[tuple[str, ...]]], name: str
) -> None:
    out, said = runs
    assert {(name, "0", "4", "False"), (name, "1", "4", "False")} <= said
    one, two = (_steps(out / each) for each in ("one", name))
    assert len(one) == len(two) == 4
    for mine, other in zip(one, two, strict=True):
        for key in ("base_loss", "path_loss", "grad_norm"):
            assert mine[key] == pytest.approx(other[key], rel=1e-5), key
    _same_weights(out / "one", out / name)


@pytest.mark.slow
def test_a_state_goes_on_with_any_processes_and_sharding(
    runs: tuple[Path, set[tuple[str, ...]]], new_run: Callable[..., Any]
) -> None:
    out, said = runs
    assert ("from-one", "1", "4", "False") in said
    _same_weights(out / "one", out / "from-one")
    assert ("half-all", "1", "2", "False") in said
    back = new_run(out / "half-all")
    assert back.progress.step == 2
    back.run(Horizon(steps=4), report=_quiet)
    _same_weights(out / "one", out / "half-all")


@pytest.mark.slow
def test_all_stop_after_the_same_step_whoever_is_asked(
    runs: tuple[Path, set[tuple[str, ...]]],
) -> None:
    out, said = runs
    stopped = sorted(line for line in said if line[0] == "stopped")
    # First stopped while sharded, then gone on with to the end, whole.
    assert stopped == [
        ("stopped", rank, step, asked)
        for rank in ("0", "1")
        for step, asked in (("1", "True"), ("4", "False"))
    ]
    _same_weights(out / "one", out / "stopped")


@pytest.mark.slow
def test_a_time_horizon_ends_at_the_same_step_everywhere(
    runs: tuple[Path, set[tuple[str, ...]]],
) -> None:
    steps = [line[2] for line in runs[1] if line[0] == "timed"]
    assert len(steps) == 2
    assert steps[0] == steps[1]
    assert int(steps[0]) >= 1


def _steps(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def _same_weights(one: Path, other: Path) -> None:
    states = [torch.load(each / "state.pt", weights_only=True) for each in (one, other)]
    assert states[0]["step"] == states[1]["step"] == 4
    for name, weight in states[0]["head"].items():
        assert torch.allclose(weight, states[1]["head"][name], atol=1e-6), name
    moments, others = (state["optimizer"]["state"] for state in states)
    assert moments.keys() == others.keys() == states[0]["head"].keys()
    for name, moment in moments.items():
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.allclose(moment[key], others[name][key], atol=1e-6), (name, key)


def _quiet(text: str) -> None:
    assert text
