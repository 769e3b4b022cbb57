"""What can be held of the benchmark of a round without a GPU."""

from pathlib import Path

import pytest
import torch
from jetflow_kernels import timing
from jetflow_kernels.round import bench

TIMES = {"median_us": 12.5, "p10_us": 12.0, "p90_us": 14.0}


def test_a_line_names_goal_and_ratios() -> None:
    result = {"step": "build_tree", "size": "256 rows", **TIMES, "goal_us": 40.0}
    told = bench.line({**result, "peers": {"torch": {"ratio": 3.25}}})
    assert "12.50 us (12.00 to 14.00)  goal 40  torch x3.2" in told
    assert "goal" not in bench.line({**result, "goal_us": None, "peers": {}})
    assert "FAILED: RuntimeError" in bench.line({"step": "x", "failed": "RuntimeError: y"})


def test_a_failure_is_a_result() -> None:
    told = []

    def broken() -> dict[str, object]:
        raise RuntimeError("it differs")

    bench._told(broken, "build_tree", told.append)
    assert told == [{"step": "build_tree", "failed": "RuntimeError: it differs"}]


def test_no_device_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        bench.main(["--out", str(tmp_path / "result.json")])
    assert "needs a CUDA device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_spread_is_of_one_call() -> None:
    found = timing.spread([float(time) for time in range(10, 120, 10)], calls=10)
    assert found.median_us == 6.0
    assert found.p10_us < 3.0 < 10.0 < found.p90_us


def test_reports_are_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    timing.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        timing.write_json(path, {"a": object()})
    assert path.read_text(encoding="utf-8") == '{\n "a": 1\n}'
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
