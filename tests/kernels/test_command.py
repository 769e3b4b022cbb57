"""``jetflow bench kernels`` as the command line finds and runs it."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from jetflow_core.commands.registry import GROUP, build_app
from jetflow_kernels import Backend, command, timing
from jetflow_kernels.attention import bench as attention
from jetflow_kernels.round import bench as steps

PROJECT = Path(__file__).parents[2] / "packages" / "jetflow-kernels" / "pyproject.toml"
TIMES = {"median_us": 10.0, "p10_us": 9.5, "p90_us": 11.0}


def declared() -> EntryPoint:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    ((name, value),) = project["entry-points"][GROUP].items()
    return EntryPoint(name, value, GROUP)


def test_the_command_line_finds_it(capsys: pytest.CaptureFixture[str]) -> None:
    app = build_app([declared()])
    app(["bench", "kernels", "--help"])
    told = capsys.readouterr().out
    assert "Time the kernels on this machine" in told
    assert "--prefixes" in told


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("rows", "300", "rows '300' is out of range: whole numbers, 1 to 256"),
        ("prefixes", "1,x", "prefixes '1,x' is out of range"),
        ("pages", "", "pages '' is out of range"),
        ("layers", 0, "layers 0 is out of range: 1 to 1000"),
        ("out", Path("no/such/folder/x.json"), "lies in no folder"),
        ("requests", "1", "there is none here"),
    ],
)
def test_bad_options_are_named(
    option: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=said):
        command.bench(**{option: value})


def test_versions_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Backend("reference", True, "anywhere"),
        Backend("triton", True, "a card"),
        Backend("cuda", False, "no compiler"),
        Backend("flash", True, "a card"),
    ]
    monkeypatch.setattr("jetflow_kernels.availability.backends", lambda: tuple(found))
    assert command.versions("all") == ["triton", "flash"]
    assert command.versions("flash") == ["flash"]
    assert command.versions("flash, triton") == ["triton", "flash"]
    for wanted, said in (
        ("cuda", "backend cuda cannot run here: no compiler"),
        ("reference", "must be all or of triton, cuda, flash, got 'reference'"),
        ("", "got ''"),
    ):
        with pytest.raises(ValueError, match=said):
            command.versions(wanted)


def test_results_are_written_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case = {"requests": 1, "prefix": 1024, "rows": 64, "page": 128, "layers": 36}
    ours = {**case, **TIMES, "backend": "triton", "share_of_floor": 0.5}
    step = {"step": "build_tree", "size": "256 rows", **TIMES, "goal_us": 40.0, "peers": {}}

    def measure(cases: list[attention.Case], entrants: dict[str, object], report) -> None:
        assert [(each.rows, each.prefix) for each in cases] == [(64, 1024)]
        report(ours)

    monkeypatch.setattr(attention, "measure", measure)
    monkeypatch.setattr(steps, "run", lambda sizes, report: report(step))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(timing, "environment", lambda: {"device": "a card"})
    monkeypatch.setattr("jetflow_kernels.availability.backends", lambda: ())
    out = tmp_path / "kernels.json"
    assert command.bench(out=out, rows="64", prefixes="1024") == 0
    assert "50 % of the floor" in capsys.readouterr().out
    assert '"a card"' in out.read_text(encoding="utf-8")
    monkeypatch.setattr(steps, "run", lambda sizes, report: report({"step": "x", "failed": "y"}))
    assert command.bench(rows="64", prefixes="1024") == 1
