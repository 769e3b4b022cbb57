"""A run's picture shows what its metrics hold, and only that."""

from __future__ import annotations

from pathlib import Path

import pytest
from jetflow_core.cli import run_app
from jetflow_train.cli import build
from jetflow_train.plots import named_lines, tau_lines
from jetflow_train.sinks.jsonl import JsonLines

ENTRIES = [
    {"step": 25, "kind": "steps", "base_loss": 3.0, "path_loss": 2.5, "grad_norm": None},
    {"step": 30, "kind": "evaluation", "values": {"tau/math/64": 2.0, "tau/all at 0.7/chain": 1.5}},
    {"step": 50, "kind": "steps", "base_loss": 2.0, "path_loss": 1.5, "grad_norm": 0.5},
    {
        "step": 60,
        "kind": "evaluation",
        "values": {"tau/math/64": 3.0, "tau/all at 0.7/chain": 1.75},
    },
]


def test_lines_are_those_of_the_metrics() -> None:
    names = {"base_loss": "base", "grad_norm": "norm", "none": "none"}
    assert named_lines(ENTRIES, names) == {"base": ([25, 50], [3.0, 2.0]), "norm": ([50], [0.5])}
    assert tau_lines(ENTRIES) == {
        "math, 64": ([30, 60], [2.0, 3.0]),
        "all at 0.7, chain": ([30, 60], [1.5, 1.75]),
    }
    # A head without a path term has a path loss of nothing but zeros.
    assert named_lines([{"step": 1, "path_loss": 0.0}], {"path_loss": "p"}) == {}


@pytest.mark.slow
def test_a_picture_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sink = JsonLines(tmp_path / "run" / "metrics.jsonl")
    for entry in ENTRIES:
        sink.write(int(str(entry["step"])), entry)
    arguments = ["plot-run", str(tmp_path / "run"), "--out"]
    assert run_app(build(), [*arguments, str(tmp_path / "a.png")]) == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert run_app(build(), [*arguments, str(tmp_path / "a.txt")]) == 2
    assert "must end in .png, .svg or .pdf" in capsys.readouterr().err
    assert run_app(build(), ["plot-run", str(tmp_path), "--out", str(tmp_path / "b.png")]) == 2
    assert "cannot read the metrics" in capsys.readouterr().err
    assert not (tmp_path / "b.png").exists()


def test_nothing_to_draw_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    assert run_app(build(), ["plot-run", str(tmp_path), "--out", str(tmp_path / "b.png")]) == 2
    assert "holds no figures to draw" in capsys.readouterr().err
