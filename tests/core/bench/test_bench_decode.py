"""The decode benchmark: real runs of a tiny target, figures, and interrupted runs."""

import importlib.util
import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.bench import app, schedule
from jetflow_core.bench.checks import check_plot
from jetflow_core.bench.configurations import KINDS, Configuration, configurations, turn
from jetflow_core.bench.decode import DecodeSettings, run_decode
from jetflow_core.bench.measured import PHASES, Sample, Text, Timing, measure
from jetflow_core.bench.plots import plot_decode
from jetflow_core.bench.prompts import load_sets
from jetflow_core.bench.schema import ReportError, check_report
from jetflow_core.bench.summary import Measured, bootstrap, summarise_set
from jetflow_core.commands.numbers import OptionError
from jetflow_tree.stats import AcceptanceStats

NEW_TOKENS = 16


@pytest.fixture
def settings(
    tiny_target_folder: Path, tiny_head_folder: Path, prompt_file: Path
) -> Callable[..., DecodeSettings]:
    def make(**changes: Any) -> DecodeSettings:
        fields = {
            "prompts": (str(prompt_file),), "target": str(tiny_target_folder),
            "heads": (str(tiny_head_folder),), "dtype": "float32", "budgets": (1, 4, 128),
            "max_new_tokens": NEW_TOKENS, "repeats": 2, "threads": torch.get_num_threads(),
        }  # fmt: skip
        return DecodeSettings(**(fields | changes))

    return make


def _rows(report: dict[str, Any]) -> dict[str, Any]:
    return {row["name"]: row for row in report["sets"][0]["rows"]}


@pytest.mark.slow
def test_the_command_measures_draws_and_reports(
    tiny_target_folder: Path, tiny_head_folder: Path, prompt_file: Path, tmp_path: Path, capsys: Any
) -> None:
    out, plot = tmp_path / "decode.json", tmp_path / "decode.png"
    code = app.build()([
        "decode", "--prompts", str(prompt_file), "--target", str(tiny_target_folder), "--head",
        str(tiny_head_folder), "--device", "cpu", "--dtype", "float32", "--budgets", "1,4,128",
        "--max-new-tokens", str(NEW_TOKENS), "--repeats", "2", "--out", str(out), "--plot",
        str(plot),
    ])  # fmt: skip
    assert code == 0
    report = json.loads(out.read_text())
    check_report(report)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert {file.name for file in tmp_path.iterdir()} == {"decode.json", "decode.png", "few.jsonl"}
    names = ["plain", "chain", "tree-4", "tree-128", "auto", "all-children-4", "all-children-128"]
    rows = _rows(report)
    assert list(rows) == names
    assert all(row["texts_equal_to_plain"] == 4 for row in rows.values())
    assert all(row["tokens"] == 4 * NEW_TOKENS for row in rows.values())
    assert rows["plain"]["tau"] == rows["plain"]["speed"]["break_even_tau"] == 1.0
    assert rows["tree-128"]["tau"] > 1.0 and rows["tree-128"]["rows_per_round"] > 64
    assert rows["auto"]["acceptance"]["rounds"] == rows["auto"]["rounds"]
    for row in rows.values():
        speed = row["speed"]
        assert speed["repeats"] == 2 and speed["prefill_seconds"] > 0.0
        parts = sum(speed["seconds_per_round_by_phase"].values())
        assert parts == pytest.approx(speed["seconds_per_round"])
    assert report["used"]["warm_up_setup_seconds"]["auto"] > 0.0
    assert "tree-128" in capsys.readouterr().out


@pytest.mark.slow
def test_many_slots_give_the_same_acceptance(settings: Callable[..., DecodeSettings]) -> None:
    kinds = tuple(kind for kind in KINDS if kind != "auto")
    alone = _rows(run_decode(settings(kinds=kinds, repeats=1)))
    together = _rows(run_decode(settings(tau_only=True, slots=3)))
    assert list(together) == list(alone)
    for name, row in together.items():
        assert (row["tokens"], row["rounds"]) == (alone[name]["tokens"], alone[name]["rounds"])
        for place in ("by_depth", "by_rank"):
            assert row["acceptance"][place] == alone[name]["acceptance"][place]
        assert row["speed"] is None and alone[name]["speed"] is not None


@pytest.mark.slow
def test_an_interrupted_run_goes_on_where_it_was(
    settings: Callable[..., DecodeSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "decode.json"
    few = settings(kinds=("plain", "chain"), budgets=(4,), tau_only=True, slots=1)
    # Four prompts in flight make one unit; with one prompt a unit there are several to lose.
    monkeypatch.setattr("jetflow_core.bench.decode._TAU_ONLY_BATCHES", 1)
    calls = []

    def counted(*arguments: Any, stop_at: int, **options: Any) -> Sample:
        calls.append(arguments)
        if len(calls) == stop_at:
            raise KeyboardInterrupt
        return measure(*arguments, **options)

    monkeypatch.setattr(schedule, "measure", lambda *a, **o: counted(*a, stop_at=6, **o))
    with pytest.raises(KeyboardInterrupt):
        run_decode(few, out)
    partial = tmp_path / "decode.json.partial"
    assert partial.exists() and not out.exists()
    with pytest.raises(ValueError, match=r"unfinished run with seed = 0, now it is 1; delete it"):
        run_decode(settings(kinds=("plain", "chain"), budgets=(4,), tau_only=True, seed=1), out)
    calls.clear()
    monkeypatch.setattr(schedule, "measure", lambda *a, **o: counted(*a, stop_at=0, **o))
    resumed = run_decode(few, out)
    # Two of the four prompts were finished, with two configurations each.
    assert len(calls) == 4 and out.exists() and not partial.exists()
    assert resumed["sets"] == run_decode(few)["sets"]


def _sample(sizes: list[list[int]], times: list[tuple[float, float]]) -> Sample:
    """Texts of rounds of these sizes; each repeat spends (draft, verify) seconds."""
    tokens, rounds = sum(map(sum, sizes)), sum(map(len, sizes))
    stats = AcceptanceStats(rounds=rounds, accepted=tokens - rounds, corrections=rounds, rows=4)
    texts = [Text((1,), tuple(range(sum(size))), tuple(size)) for size in sizes]
    timings = [
        Timing(tokens=tokens, rounds=rounds, passes=rounds, draft=draft, verify=verify,
               prefill=99.0, setup=99.0)
        for draft, verify in times
    ]  # fmt: skip
    return Sample(texts, stats, drafted_rounds=rounds, drafted_depths=rounds, timings=timings)


def test_figures_are_pooled_as_by_hand() -> None:
    found = [
        Configuration("plain", "plain", 1, None),
        Configuration("tree-4", "tree", 4, 0),
    ]
    samples = {
        "plain": [_sample([[1] * 10], [(0.0, 10.0), (0.0, 20.0), (0.0, 12.0)]),
                  _sample([[1] * 2], [(0.0, 2.0), (0.0, 4.0), (0.0, 2.0)])],
        "tree-4": [_sample([[2] * 5], [(1.0, 4.0), (1.0, 5.0), (2.0, 6.0)]),
                   _sample([[1, 1]], [(1.0, 2.0), (1.0, 2.0), (1.0, 3.0)])],
    }  # fmt: skip
    plain, tree = summarise_set(found, samples, timed=True)
    # 12 tokens in 7 rounds; the mean of the prompts' own taus, 2 and 1, would be 1.5.
    assert tree["tau"] == pytest.approx(12 / 7)
    assert tree["acceptance"]["rounds"] == 7 and tree["acceptance"]["accepted"] == 5
    # Seconds of the repeats: plain 12, 24, 14; tree 8, 9, 12. Prefill and setup stay out.
    speed = tree["speed"]
    assert speed["tokens_per_second_by_repeat"] == pytest.approx([12 / 8, 12 / 9, 12 / 12])
    assert speed["tokens_per_second"] == pytest.approx(12 / 9)
    assert speed["ratio_to_plain"]["by_repeat"] == pytest.approx([12 / 8, 24 / 9, 14 / 12])
    assert speed["ratio_to_plain"]["median"] == pytest.approx(12 / 8)
    assert (speed["ratio_to_plain"]["min"], speed["ratio_to_plain"]["max"]) == pytest.approx(
        (14 / 12, 24 / 9)
    )
    assert speed["seconds_per_round"] == pytest.approx(29 / 21)
    assert speed["seconds_per_round_by_phase"]["draft"] == pytest.approx(7 / 21)
    assert speed["break_even_tau"] == pytest.approx((29 / 21) / (50 / 36))
    assert plain["speed"]["ratio_to_plain"]["by_repeat"] == [1.0, 1.0, 1.0]


def test_the_interval_holds_tau_and_narrows() -> None:
    few = bootstrap([10, 20, 12, 30], [5, 5, 6, 10])
    assert few[0] < 72 / 26 < few[1]
    many = bootstrap([10, 20, 12, 30] * 50, [5, 5, 6, 10] * 50)
    assert few[0] < many[0] < 72 / 26 < many[1] < few[1]
    assert bootstrap([12, 12], [6, 6]) == [2.0, 2.0]


def test_a_sample_survives_its_file() -> None:
    sample = _sample([[2, 1], [3]], [(1.0, 2.0), (0.5, 2.5)])
    again = Sample.from_dict(json.loads(json.dumps(sample.to_dict())))
    assert again == sample
    assert Measured(Configuration("c", "tree", 4, 0), [again]).texts == sample.texts
    assert again.timings[1].decode == 3.0
    assert set(PHASES) < set(Timing.__slots__)


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    found = [
        Configuration("plain", "plain", 1, None),
        Configuration("tree-4", "tree", 4, 0),
        Configuration("chain", "chain", 4, 0),
    ]
    samples = {
        each.name: [_sample([[1, 2]], [(1.0, 1.0)]), _sample([[2, 2]], [(1.0, 1.0)])]
        for each in found
    }
    rows = summarise_set(found, samples, timed=True)
    return {
        "format": "jetflow-bench-decode/1", "mode": "timed", "used": {}, "definitions": {},
        "notes": [], "provenance": {},
        "settings": {"max_new_tokens": 128, "temperature": 0.0, "seed": 0},
        "sets": [{"name": "few", "prompts": 2, "fingerprint": "f", "rows": rows}],
    }  # fmt: skip


@pytest.mark.parametrize(
    "path",
    [
        ("provenance",),
        ("settings", "max_new_tokens"),
        ("sets", 0, "rows", 1, "loop_share"),
        ("sets", 0, "rows", 1, "tau_without_loops"),
        ("sets", 0, "rows", 1, "formula"),
        ("sets", 0, "rows", 1, "tau_interval"),
        ("sets", 0, "rows", 1, "prompt_lookup"),
        ("sets", 0, "rows", 1, "prompt_lookup", "tau"),
        ("sets", 0, "rows", 1, "acceptance", "by_rank"),
        ("sets", 0, "rows", 1, "speed", "break_even_tau"),
    ],
)
def test_an_honest_field_may_not_be_missing(
    report: dict[str, Any], path: tuple[Any, ...], tmp_path: Path
) -> None:
    check_report(report)
    broken = deepcopy(report)
    place = broken
    for key in path[:-1]:
        place = place[key]
    del place[path[-1]]
    with pytest.raises(ReportError, match=f"lacks '{path[-1]}'"):
        check_report(broken)
    with pytest.raises(ReportError):
        plot_decode(broken, tmp_path / "plot.png")
    assert not list(tmp_path.iterdir())


def test_turns_let_everybody_go_first_and_last() -> None:
    found = configurations(KINDS, (1, 16, 64), (15,), ("head",))
    orders = [turn(found, number) for number in range(2 * len(found))]
    assert all(sorted(order, key=id) == sorted(found, key=id) for order in orders)
    assert {order[0].name for order in orders} == {each.name for each in found}
    assert {order[-1].name for order in orders} == {each.name for each in found}


def test_names_and_budgets_of_several_heads() -> None:
    found = configurations(("plain", "chain", "tree"), (1, 16), (7, 15), ("a", "b"))
    assert [(each.name, each.budget, each.head) for each in found] == [
        ("plain", 1, None), ("a/chain", 8, 0), ("a/tree-16", 16, 0), ("b/chain", 16, 1),
        ("b/tree-16", 16, 1),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="nothing to run"):
        configurations((), (1,), (7,), ("a",))


@pytest.mark.parametrize("kind", ["tree", "all-children"])
def test_no_tree_is_told_without_the_chain_of_its_head(kind: str, report: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"kinds plain,{kind} hold trees without chain"):
        configurations(("plain", kind), (16,), (7,), ("a",))
    broken = deepcopy(report)
    rows = broken["sets"][0]["rows"]
    rows[:] = [row for row in rows if row["kind"] != "chain"]
    with pytest.raises(ReportError, match="has no chain of the same head"):
        check_report(broken)


def test_prompts_are_drawn_alike_and_refused_by_line(tmp_path: Path, prompt_file: Path) -> None:
    one, two = (load_sets([prompt_file], limit=2, seed=5) for _ in range(2))
    assert one == two and len(one[0].prompts) == 2
    assert [len(found.prompts) for found in load_sets(["builtin"])] == [4, 4, 4]
    line_separator = tmp_path / "separator.jsonl"
    line_separator.write_text('{"prompt": "a\u2028b"}\n', encoding="utf-8")
    assert load_sets([line_separator])[0].prompts[0].text == "a\u2028b"
    bad = tmp_path / "bad.jsonl"
    for text, message in [
        ("", "holds no prompts"),
        ('{"prompt": "a"}\n{"text": "b"}\n', 'line 2: needs an object with a text under "prompt"'),
        ("{", "line 1: not JSON"),
    ]:
        bad.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_sets([bad])
    with pytest.raises(ValueError, match="cannot read the prompts of"):
        load_sets([tmp_path / "none.jsonl"])
    with pytest.raises(ValueError, match="two prompt sets are called 'few'"):
        load_sets([prompt_file, prompt_file])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budgets", "0,16"], "budget '0' is out of range"),
        (["--budgets", "16,16"], "budget 16 comes twice"),
        (["--budgets", "1000"], "budget '1000' is out of range: whole numbers, 1 to 256"),
        (["--kinds", "star"], "kind 'star' is unknown"),
        (["--repeats", "0"], "repeats 0 is out of range: 1 to"),
        (["--dtype", "int8"], "dtype 'int8' is unknown"),
        (["--seed", "-1"], "seed -1 is out of range: at least 0"),
        (["--limit", "0"], "limit 0 is out of range: at least 1"),
        (["--out", "nowhere/x.json"], "the folder nowhere does not exist"),
        (["--plot", "x.txt"], r"must end in \.png, \.svg or \.pdf"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], message: str) -> None:
    with pytest.raises((ValueError, OptionError), match=message):
        app.build()(["decode", "--device", "cpu", *arguments])


def test_a_plot_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"install jetflow-core\[plot\]"):
        check_plot(tmp_path / "x.png")


def test_the_builders_are_timed_beside_a_plain_heap(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "tree.json"
    assert app.build()(["tree", "--repeats", "2", "--budgets", "8", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    ratios = {row["builder"]: row["ratio"] for row in report["rows"] if row["table"] == "marginal"}
    assert ratios["plain heap"] == 1.0 and ratios["best-first"] > 0.0
    assert report["provenance"]["packages"]
    assert "best-first" in capsys.readouterr().out
