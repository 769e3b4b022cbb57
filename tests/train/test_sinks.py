"""Figures of a run arrive where they are asked for, and each tracker reads them back."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jetflow_train.sinks.base import MetricSink, Several, numbers
from jetflow_train.sinks.choose import METRICS, check_trackers, open_sinks
from jetflow_train.sinks.jsonl import JsonLines, read_lines

ENTRY = {"step": 7, "loss": 0.5, "grad_norm": float("nan"), "tau": {"math": {"64": 4.25}}}


@pytest.fixture
def trackio_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """trackio with its storage in a temporary folder, which it looks up at import."""
    home = tmp_path / "trackio"
    monkeypatch.setenv("TRACKIO_DIR", str(home))
    for variable in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(variable, raising=False)
    before = {name for name in sys.modules if name.partition(".")[0] == "trackio"}
    yield home
    for name in [name for name in sys.modules if name.partition(".")[0] == "trackio"]:
        if name not in before:
            del sys.modules[name]


def test_numbers_are_flat_and_finite() -> None:
    assert numbers(ENTRY) == {"loss": 0.5, "tau/math/64": 4.25}
    assert numbers({"kind": "x", "skipped": {3: [[1]]}, "flag": True}) == {"flag": 1.0}


def test_lines_are_whole_json(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "run" / "m.jsonl")
    sink.write(7, ENTRY)
    sink.write(8, {"loss": 0.25})
    sink.close()
    lines = [json.loads(line) for line in (tmp_path / "run" / "m.jsonl").read_text().splitlines()]
    assert lines == [{**ENTRY, "grad_norm": None}, {"step": 8, "loss": 0.25}]


def test_a_resumed_run_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "m.jsonl"
    sink = JsonLines(file)
    for step, loss in ((25, 3.0), (50, 2.0), (75, 1.0), (50, 2.5), (60, 2.25)):
        sink.write(step, {"loss": loss})
    with file.open("a") as handle:
        handle.write('{"step": 85, "lo')
    read = [(entry["step"], entry["loss"]) for entry in read_lines(file)]
    assert read == [(25, 3.0), (50, 2.5), (60, 2.25)]
    file.write_text('{"loss": 1}\n{"step": 1}\n')
    with pytest.raises(ValueError, match=r"m\.jsonl:1 is no entry"):
        read_lines(file)
    with pytest.raises(ValueError, match="cannot read the metrics"):
        read_lines(tmp_path / "none.jsonl")


def test_steps_may_hold_several_entries(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path / "m.jsonl")
    sink.write(5, {"kind": "steps", "loss": 1.0})
    sink.write(5, {"kind": "evaluation", "tau": 2.0})
    assert [entry["kind"] for entry in read_lines(tmp_path / "m.jsonl")] == ["steps", "evaluation"]


def _scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    with warnings.catch_warnings():
        # TensorBoard's reader imports what its own dependencies call deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        reader = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    found: Any = reader.EventAccumulator(str(folder))
    found.Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard_reads_the_run_back(tmp_path: Path) -> None:
    first = open_sinks(tmp_path, ["tensorboard"])
    for step, loss in ((25, 3.0), (50, 2.0), (75, 1.0)):
        first.write(step, {"step": step, "loss": loss, "tau": {"math": {"64": loss + 1}}})
    first.close()
    # Resumed from the state of step 25.
    second = open_sinks(tmp_path, ["tensorboard"])
    second.write(50, {"loss": 2.5})
    second.close()
    assert _scalars(tmp_path / "tensorboard") == {
        "loss": [(25, 3.0), (50, 2.5)],
        "tau/math/64": [(25, 4.0)],
    }
    assert len(read_lines(tmp_path / METRICS)) == 2


def test_trackio_reads_the_run_back(
    tmp_path: Path, trackio_home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my-run"
    for steps in ((25, 50), (75,)):
        sink = open_sinks(out, ["trackio"])
        for step in steps:
            sink.write(step, {"step": step, "loss": 100.0 / step, "tau": {"math": 2.0}})
        sink.close()
    assert capfd.readouterr() == ("", "")
    storage = importlib.import_module("trackio.sqlite_storage").SQLiteStorage
    assert storage.get_runs("jetflow") == ["my-run"]
    logs = storage.get_logs("jetflow", "my-run")
    assert [(e["step"], e["loss"], e["tau/math"]) for e in logs] == [
        (25, 4.0, 2.0),
        (50, 2.0, 2.0),
        (75, 100.0 / 75, 2.0),
    ]
    assert list(trackio_home.glob("*.db"))


def test_nothing_is_sent_to_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_SPACE_ID", "somebody/space")
    with pytest.raises(ValueError, match="TRACKIO_SPACE_ID is set"):
        open_sinks(tmp_path, ["trackio"])


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trackers(["tensorboard", "trackio"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("tensorboard", "trackio"):
        with pytest.raises(ValueError, match=rf"install jetflow-train\[{name}\]"):
            check_trackers([name])


def test_every_sink_gets_everything(tmp_path: Path) -> None:
    seen: list[tuple[int, object]] = []

    class Memory:
        def write(self, step: int, values: Any) -> None:
            seen.append((step, dict(values)))

        def close(self) -> None:
            seen.append((0, "closed"))

    sink: MetricSink = Several([Memory(), Memory()])
    sink.write(3, {"a": 1})
    sink.close()
    assert seen == [(3, {"a": 1})] * 2 + [(0, "closed")] * 2


def test_trackers_are_not_imported_before_they_are_used() -> None:
    code = """
import sys
from pathlib import Path
from jetflow_train.sinks.choose import open_sinks
open_sinks(Path("x"), ["tensorboard", "trackio"])
print([name for name in ("trackio", "tensorboard", "gradio_client") if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "[]", done.stderr
