"""``jetflow bench serve`` over whole runs, with a server and a client that are none."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from jetflow_serve.bench.client import MODULE
from jetflow_serve.bench.configurations import JETFLOW
from jetflow_serve.bench.plot import plot_serve
from jetflow_serve.bench.run import run_serve
from jetflow_serve.bench.schema import ReportError, check_report
from jetflow_serve.bench.tables import failure_lines, serve_tables
from jetflow_serve.server import SERVER
from rich.console import Console


def _read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return found


def _quiet(line: str) -> None:
    assert line


def _names(report: dict[str, Any]) -> list[str]:
    return [each["name"] for each in report["configurations"]]


def test_each_configuration_has_a_server_of_its_own(
    tmp_path: Path, fakes: Any, plan_maker: Any
) -> None:
    report = run_serve(plan_maker(repeats=2, rates=(8.0,), requests=3), _quiet, fakes)
    assert report["finished"]
    written, shown = _read(tmp_path), json.loads(json.dumps(report))
    # The arguments of whoever runs this may be files, which a report names without their folders.
    assert written.pop("provenance").keys() == shown.pop("provenance").keys()
    assert written == shown
    assert not list(tmp_path.glob("*.partial*"))
    modules = [module for module, _ in fakes.started]
    assert modules == [SERVER, MODULE, *[JETFLOW, MODULE] * 3]
    assert _names(report) == ["plain", "chain", "tree-4", "tree-16"]
    starts = [arguments for module, arguments in fakes.started if module == JETFLOW]
    assert [each[each.index("--budget") + 1] for each in starts] == ["8", "4", "16"]
    assert ["chain" in each for each in starts] == [True, False, False]
    for configuration in report["configurations"]:
        rows = configuration["rows"]
        assert [row["load"] for row in rows] == ["batch 1", "batch 2", "rate 8"]
        for row in rows:
            assert len(row["repeats"]) == 2
            own, plain = row["figures"], configuration["name"] == "plain"
            assert own["tau"] == (1.0 if plain else 2.5)
            assert own["rows_per_round"] == (configuration["budget"])
            assert row["repeats"][0]["accepted_by_depth"] == ([] if plain else [30.0, 15.0])
            assert row["ratio_to_plain"]["tokens_per_second"] == 1.0
            assert row["texts_equal_to_plain"] == row["requests"] == 3
    # Every other repeat goes through the loads backwards.
    order = [run["--result-filename"] for run in fakes.runs[:6]]
    assert order[:3] == [f"plain.{name}.1.result.json" for name in ("batch-1", "batch-2", "rate-8")]
    assert order[3:] == [f"plain.{name}.2.result.json" for name in ("rate-8", "batch-2", "batch-1")]
    assert fakes.runs[1]["--max-concurrency"] == "2"
    assert fakes.runs[2]["--request-rate"] == "8.0"


def test_trees_of_all_budgets_on_one_server(tmp_path: Path, fakes: Any, plan_maker: Any) -> None:
    plan = plan_maker(one_server=True, requests=2, warm_up=1)
    report = run_serve(plan, _quiet, fakes)
    assert [module for module, _ in fakes.started if module != MODULE] == [SERVER, JETFLOW, JETFLOW]
    four, sixteen = report["configurations"][2:]
    assert four["extra_body"] == {"vllm_xargs": {"jetflow_budget": 4}}
    assert four["rows"][0]["figures"]["rows_per_round"] == 4
    assert sixteen["rows"][0]["figures"]["rows_per_round"] == 16
    assert four["rows"][0]["ratio_to_plain"]["tokens_per_second"] == pytest.approx(1.2)
    asked = fakes.servers[-1].server.asked
    # One request to warm up and two under each of the two loads, for each budget.
    assert [body["vllm_xargs"]["jetflow_budget"] for body in asked] == [4] * 5 + [16] * 5
    assert any("one server" in note for note in report["notes"])
    console = Console(width=80, record=True, file=StringIO())
    for table in serve_tables(report):
        console.print(table)
    text = console.export_text()
    assert "batch 2, 2 requests" in text and "…" not in text
    assert text.count("tree-16") == 2


@pytest.mark.slow
def test_the_picture(tmp_path: Path, fakes: Any, plan_maker: Any) -> None:
    plan = plan_maker(modes=("plain", "tree"), budgets=(4,), rates=(2.0,), requests=2)
    report = run_serve(plan, _quiet, fakes)
    picture = plot_serve(report, tmp_path / "picture.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    nothing = {**report, "configurations": []}
    with pytest.raises(ValueError, match="nothing was measured"):
        plot_serve(nothing, tmp_path / "empty.png")
    assert not (tmp_path / "empty.png").exists()


@pytest.mark.parametrize("where", ["dies_at_start", "dies_under", "fails_under"])
def test_what_fails_is_told_and_the_others_go_on(
    tmp_path: Path, fakes: Any, plan_maker: Any, where: str
) -> None:
    setattr(fakes, where, "chain" if where == "dies_at_start" else "chain.batch-2.1")
    report = run_serve(plan_maker(requests=2), _quiet, fakes)
    assert not report["finished"]
    assert _names(report) == ["plain", "tree-4", "tree-16"]
    [failure] = report["failures"]
    said = {
        "dies_at_start": "died before it answered, exit code 3",
        "dies_under": "the server died, exit code -9",
        "fails_under": "1 of 2 requests were answered under batch 2; the first failure: no room at",
    }
    assert failure["name"] == "chain" and said[where] in failure["what"]
    log_end = "" if where == "fails_under" else f"{JETFLOW}\nthe last words"
    assert failure["log_end"] == log_end
    assert next(failure_lines(report)).startswith("chain was not measured: ")
    # The same command measures what is missing and nothing else.
    setattr(fakes, where, "none")
    before = len(fakes.started)
    again = run_serve(plan_maker(requests=2), _quiet, fakes)
    assert again["finished"] and again["failures"] == []
    assert [module for module, _ in fakes.started[before:]] == [JETFLOW, MODULE]
    assert again["configurations"][0] == report["configurations"][0]


def test_an_interrupted_run_keeps_what_it_has(tmp_path: Path, fakes: Any, plan_maker: Any) -> None:
    fakes.interrupted_under = "tree-4.batch-1.1"
    with pytest.raises(KeyboardInterrupt):
        run_serve(plan_maker(requests=2), _quiet, fakes)
    found = _read(tmp_path)
    assert not found["finished"] and _names(found) == ["plain", "chain"]
    with pytest.raises(ValueError, match="unfinished run with seed = 0, now it is 1"):
        run_serve(plan_maker(requests=2, seed=1), _quiet, fakes)
    fakes.interrupted_under = "none"
    before = len(fakes.started)
    assert run_serve(plan_maker(requests=2), _quiet, fakes)["finished"]
    assert len(fakes.started) == before + 4


def test_a_server_that_is_not_what_was_asked_for(fakes: Any, plan_maker: Any) -> None:
    fakes.deaf = True
    report = run_serve(plan_maker(requests=2, one_server=True), _quiet, fakes)
    assert _names(report) == ["chain", "tree-16"]
    plain, four = report["failures"]
    assert "drafted 300 tokens for requests that were to be decoded plainly" in plain["what"]
    assert "drafted 15.0 nodes a round for budget 4" in four["what"]
    with pytest.raises(ReportError, match="a finished report holds failures"):
        check_report({**report, "finished": True})
    for name in report:
        with pytest.raises(ReportError, match=name):
            check_report({key: value for key, value in report.items() if key != name})
