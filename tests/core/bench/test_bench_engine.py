"""The engine benchmark on a CPU: random weights with imposed acceptance, and a checkpoint."""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.bench import app
from jetflow_core.bench.engine import subjects
from jetflow_core.bench.engine.budgets import engine_budgets
from jetflow_core.bench.engine.marks import PHASES
from jetflow_core.bench.engine.run import run_engine
from jetflow_core.bench.engine.runs import _rounds_of
from jetflow_core.bench.engine.schema import check_report
from jetflow_core.bench.engine.settings import AUTO, EngineSettings
from jetflow_core.bench.engine.subjects import _spread_taps
from jetflow_core.bench.engine.tables import engine_tables
from jetflow_core.bench.schema import ReportError
from jetflow_core.commands.numbers import OptionError
from jetflow_core.rounds.auto import costs, measure
from jetflow_core.stacks import StackShape

AT_LEAST = [0.95, 0.85, 0.75, 0.65]
SHAPE = StackShape(
    vocab_size=97, hidden_size=32, intermediate_size=32, num_layers=2, num_heads=2, num_kv_heads=1,
    head_dim=16, max_positions=512, rope_theta=1e4, head_norms=True,
)  # fmt: skip
ROUNDS, BATCH = 6, 2


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "acceptance.json"
    sets = {"some": {"tau": 1 + sum(AT_LEAST), "p_accept_at_least": AT_LEAST, "budget": 16}}
    path.write_text(json.dumps({"what": "made up", "sets": sets}))
    return path


@pytest.fixture
def tiny_settings(trace_file: Path) -> Callable[..., EngineSettings]:
    def make(**changes: Any) -> EngineSettings:
        fields = {
            "shape": "qwen3-8b", "acceptance": str(trace_file), "trace": "some",
            "budgets": (1, 16), "batch": BATCH, "context": 6, "rounds": ROUNDS, "repeats": 2,
            "dtype": "float32", "head_layers": 1, "page": 8, "prefill_rows": 8,
        }  # fmt: skip
        return EngineSettings(**(fields | changes))

    return make


def test_random_weights_keep_what_is_imposed(
    tiny_settings: Callable[..., EngineSettings], tmp_path: Path
) -> None:
    out = tmp_path / "engine.json"
    report = run_engine(tiny_settings(bandwidth=1e10, flops=1e10), out, shape=SHAPE)
    assert json.loads(out.read_text())["rows"] == json.loads(json.dumps(report["rows"]))
    check_report(report)
    assert report["finished"] and report["acceptance"]["kind"] == "imposed"
    assert "ACCEPTANCE IS IMPOSED" in report["acceptance"]["statement"]
    assert report["acceptance"]["trace"]["at_least"] == tuple(AT_LEAST)
    plain, tree = report["rows"]
    assert (plain["name"], plain["tau"], plain["accepted"]) == ("plain", 1.0, [2 * ROUNDS * BATCH])
    assert plain["wanted"] is None and plain["rows_per_round"] == 1.0
    assert tree["rounds"] == 2 * ROUNDS and sum(tree["accepted"]) == 2 * ROUNDS * BATCH
    # Quantiles: each probability is missed by at most one draw of a repeat's.
    assert abs(tree["tau"] - (1 + sum(AT_LEAST))) <= len(AT_LEAST) / (ROUNDS * BATCH)
    assert tree["wanted"]["source"] == "file" and tree["wanted"]["cut_rounds"] == 0
    assert tree["tau"] == pytest.approx(tree["wanted"]["drawn_tau"])
    assert tree["rows_per_round"] == 16.0 and tree["texts_equal_to_plain"] is None
    for row in report["rows"]:
        seconds, speed = row["seconds_per_round"], row["tokens_per_second"]["median"]
        assert 0 < seconds["min"] <= seconds["median"] <= seconds["max"]
        assert 0 < row["floor"]["share"] < 1 and row["floor"]["seconds"] > 0
        assert speed == pytest.approx(BATCH * row["tau"] / seconds["median"], rel=0.2)
        assert row["device_seconds_per_round"] is row["device_busy_share"] is None
        assert set(row["phases"]["seconds"]) == set(PHASES) and row["phases"]["rounds"] == ROUNDS
    phases = tree["phases"]["seconds"]
    assert all(phases[name] > 0 for name in PHASES)
    assert plain["phases"]["seconds"]["head"] == plain["phases"]["seconds"]["imposed"] == 0
    assert sum(phases.values()) == pytest.approx(tree["phases"]["whole"], rel=0.5)
    assert plain["ratio_to_plain"]["median"] == 1.0
    _check_refusals(report)


def _check_refusals(report: dict[str, Any]) -> None:
    """What a reader could not judge is no report."""
    for place, name in (((), "acceptance"), (("rows", 1), "phases"), (("rows", 1), "floor"),
                        (("rows", 1, "wanted"), "drawn_tau")):  # fmt: skip
        broken = deepcopy(report)
        found: Any = broken
        for step in place:
            found = found[step]
        del found[name]
        with pytest.raises(ReportError, match=name):
            check_report(broken)
    hidden = deepcopy(report)
    hidden["rows"][1]["wanted"] = None
    with pytest.raises(ReportError, match="does not say what acceptance was imposed"):
        check_report(hidden)


def test_the_command_measures_a_shape(
    trace_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(subjects, "named_shape", lambda name: SHAPE)
    out = tmp_path / "engine.json"
    code = app.build()([
        "engine", "--shape", "tiny", "--acceptance", str(trace_file), "--trace", "some",
        "--budgets", "1", "8", "--context", "5", "--rounds", "3", "--repeats", "1",
        "--head-layers", "1", "--path-rank", "4", "--device", "cpu", "--dtype", "float32",
        "--bandwidth", "1e10", "--flops", "1e9", "--out", str(out),
    ])  # fmt: skip
    assert code == 0
    report = json.loads(out.read_text())
    check_report(report)
    assert [row["budget"] for row in report["rows"]] == [1, 8]
    assert report["rows"][1]["wanted"]["source"] == "scaled by the table's trees"
    assert (
        report["used"]["head"]["path_rank"] == 4
        and report["rows"][0]["floor"]["flops_per_second"] == 1e9
    )
    assert report["used"]["attention"] == {"1": "torch", "64": "torch", "256": "torch"}
    shown = capsys.readouterr().out
    assert "IMPOSED from some" in shown and "ACCEPTANCE IS IMPOSED" in shown
    assert {file.name for file in tmp_path.iterdir()} == {"acceptance.json", "engine.json"}


@pytest.mark.parametrize("imposed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_chosen_budget_is_told_with_its_reasons(
    tiny_settings: Callable[..., EngineSettings], tiny_target_folder: Path, tiny_head_folder: Path,
    prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imposed: bool,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(measure, "_RUNS", 1)
    monkeypatch.setattr(costs, "TOTALS", (4, 8))
    budgets, wide = (1, AUTO), replace(SHAPE, vocab_size=300)
    settings = tiny_settings(budgets=budgets, repeats=1) if imposed else EngineSettings(
        target=str(tiny_target_folder), head=str(tiny_head_folder), prompts=(str(prompt_file),),
        budgets=budgets, max_new_tokens=6, repeats=1, batch=2, dtype="float32", page=8,
    )  # fmt: skip
    report = run_engine(settings, tmp_path / "engine.json", shape=wide if imposed else None)
    check_report(json.loads((tmp_path / "engine.json").read_text()))
    assert report["settings"]["budgets"] == [1, "auto"]
    plain, chosen = report["rows"]
    assert plain["auto"] is None and (chosen["name"], chosen["budget"]) == ("auto", "auto")
    auto = chosen["auto"]
    counted = sum(line["rounds"] for line in auto["rounds"])
    assert counted == sum(auto["reasons"].values()) >= chosen["rounds"]
    assert {option["rows"] for option in auto["newest"]} <= {1, 2, 4, 8}
    assert auto["costs"]["requests_rows_seconds"] and chosen["phases"] is None
    if imposed:
        assert chosen["wanted"]["source"] == "scaled by each round's own trees"
        assert chosen["tau"] == pytest.approx(chosen["tokens"] / (ROUNDS * BATCH))
    else:
        assert chosen["texts_equal_to_plain"] == 4
    tables = [table.title for table in engine_tables(report)]
    assert tables[-1] == "auto: rows of all trees"


def test_budgets_are_read_from_words() -> None:
    assert engine_budgets(("16", "1"), 256) == (1, 16)
    assert engine_budgets(("auto", "4,1"), 256) == (1, 4, AUTO)
    assert engine_budgets(("auto",), 256) == (AUTO,)
    for words in (("auto", "auto"), ("",), ("automatic",), ("auto", "0")):
        with pytest.raises(ValueError, match="budget"):
            engine_budgets(words, 256)


def test_a_checkpoint_shows_its_own_acceptance(
    tiny_target_folder: Path, tiny_head_folder: Path, prompt_file: Path
) -> None:
    settings = EngineSettings(
        target=str(tiny_target_folder), head=str(tiny_head_folder), prompts=(str(prompt_file),),
        budgets=(1, 64), max_new_tokens=6, repeats=1, batch=4, dtype="float32", page=8,
    )  # fmt: skip
    report = run_engine(settings)
    check_report(report)
    plain, tree = report["rows"]
    assert report["acceptance"] == {
        "kind": "real", "statement": report["acceptance"]["statement"], "trace": None,
        "table": None,
    }  # fmt: skip
    assert plain["tokens"] == tree["tokens"] == 4 * 6
    assert tree["texts_equal_to_plain"] == 4
    assert tree["tau"] > 1 and sum(tree["accepted"]) < sum(plain["accepted"]) == 4 * 6
    assert plain["floor"] is tree["floor"] is None
    assert tree["wanted"] is None and tree["phases"]["seconds"]["imposed"] == 0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"trace": None}, "needs an acceptance file and a trace"),
        ({"target": "somewhere"}, "target 'somewhere' and shape"),
        ({"shape": None}, "needs a shape"),
        ({"budgets": (300,)}, "budget 300"),
        ({"budgets": ()}, "no budgets"),
        ({"batch": 0}, "batch 0"),
        ({"depth": 64}, "depth 64"),
        ({"prefill_rows": 300}, "prefill_rows 300"),
        ({"bandwidth": 0.0}, "bandwidth 0.0"),
        ({"flops": float("inf")}, "flops inf"),
        ({"bandwidth": 1e12}, "needs both"),
        ({"dtype": "int8"}, "dtype 'int8'"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    tiny_settings: Callable[..., EngineSettings], changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        tiny_settings(**changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"shape": "gpt"}, "no shape is called 'gpt'"),
        ({"trace": "other"}, "trace 'other' is not in"),
        ({"depth": 9}, "depth 9 is out of range"),
        ({"context": 50_000}, "qwen3-8b has 40960"),
        ({"shape": None, "acceptance": None, "trace": None, "target": "."}, "need a head"),
        (
            {"shape": None, "acceptance": None, "trace": None, "target": "nowhere"},
            "target nowhere: no such folder",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_any_weight_is_made(
    tiny_settings: Callable[..., EngineSettings], monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any], word: str,
) -> None:  # fmt: skip
    def never(*_args: Any, **_more: Any) -> None:
        raise AssertionError("weights were made")

    monkeypatch.setattr(subjects, "random_stack", never)
    monkeypatch.setattr(subjects, "load_stack", never)
    with pytest.raises(ValueError, match=word):
        run_engine(tiny_settings(**changes))


def test_a_bad_budget_on_the_command_line_is_named() -> None:
    with pytest.raises((ValueError, OptionError), match="budget '0'"):
        app.build()(["engine", "--budgets", "1", "0"])


def test_rounds_are_counted_up_to_the_last_that_gave_something() -> None:
    shares = [(0,), (0, 1), (0, 1), (1,), (1,)]
    assert _rounds_of(shares, Counter({0: 2, 1: 1})) == 2
    assert _rounds_of(shares, Counter({0: 3, 1: 3})) == 4


def test_taps_are_layers_of_any_stack() -> None:
    assert _spread_taps(36) == (1, 9, 17, 25, 33)
    for layers in range(1, 9):
        taps = _spread_taps(layers)
        assert taps and all(0 <= tap < layers for tap in taps)
