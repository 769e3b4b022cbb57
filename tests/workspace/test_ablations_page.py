"""The page about the paper's ablations says what the study recorded."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
FILE = "ablations-h200-2026-11-30.json"
REPORT: dict[str, Any] = json.loads((FOLDER / FILE).read_text(encoding="utf-8"))
SESSIONS: dict[str, Any] = json.loads(
    (FOLDER / "ablations-sessions-h200-2026-11-30.json").read_text(encoding="utf-8")
)
PAGE = (FOLDER / "ablations.md").read_text(encoding="utf-8")
SETS = ["gsm8k", "humaneval", "mbpp", "mtbench", "all sets"]
TEMPERATURES = (0, 0.7)
# By set, temperature, variant and budget.
CELLS = {
    (group["set"], group["temperature"], row["variant"], cell["budget"]): cell
    for group in REPORT["figures"]
    for row in group["variants"]
    for cell in row["budgets"]
}
AGAINST = {each["name"]: each.get("against") for each in REPORT["plan"]["variants"]}
MEASURED = [name for name in AGAINST if ("all sets", 0, name, 64) in CELLS]
BUDGETS = REPORT["plan"]["eval"]["budgets"]
BESIDE = {name: to for name, to in AGAINST.items() if name in MEASURED and to in MEASURED}
BASES = [*SESSIONS["earlier_bases"], next(r for r in REPORT["runs"] if r["variant"] == "base")]


def _tables(heading: str) -> list[list[list[str]]]:
    """The tables of a section, each as rows of cells without its head."""
    section = re.split(r"^##+ ", PAGE.split(f"# {heading}\n")[1], flags=re.M)[0]
    found = re.findall(r"(?:^\|.*\|\n)+", section, re.M)
    return [[_cells(row) for row in table.splitlines()[2:]] for table in found]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row[1:-1].split("|")]


def _tau(cell: dict[str, Any]) -> str:
    low, high = cell["tau_interval"]
    return f"{cell['tau']:.2f} ({low:.2f} to {high:.2f})"


def _ratio(key: tuple[str, float, str, int]) -> str:
    held = CELLS[key]["ratio"]
    return _told(held["ratio"], *held["interval"])


def _between(
    run: dict[str, Any], other: dict[str, Any], name: str, temperature: float, budget: int
) -> str:
    """The ratio of two runs that the report does not hold against each other, from the counts."""
    return _paired(*(_rounds(r["policies"], name, temperature, budget) for r in (run, other)))


def _told(ratio: float, low: float, high: float) -> str:
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def _run(variant: str) -> dict[str, Any]:
    (run,) = (run for run in REPORT["runs"] if run["variant"] == variant)
    return run


def _rounds(
    policies: list[dict[str, Any]], name: str, temperature: float, budget: int
) -> list[int]:
    """Of every prompt of a set, or of all sets in order."""
    return [
        rounds
        for row in policies
        if row["set"] in (name, *(SETS[:-1] if name == "all sets" else ()))
        and (row["temperature"], row["budget"]) == (temperature, budget)
        for rounds in row["rounds"]
    ]


def _paired(mine: list[int], other: list[int]) -> str:
    """The ratio of two taus over the same texts, with the report's kind of interval."""
    assert len(mine) == len(other) > 0
    drawn = np.random.default_rng(0).integers(len(mine), size=(2000, len(mine)))
    draws = np.array(other)[drawn].sum(1) / np.array(mine)[drawn].sum(1)
    return _told(sum(other) / sum(mine), *np.quantile(draws, (0.025, 0.975)).tolist())


def test_tau_at_64_rows() -> None:
    tables = _tables("tau at 64 rows")
    assert len(tables) == len(TEMPERATURES)
    for temperature, table in zip(TEMPERATURES, tables, strict=True):
        texts = {t["set"]: t for t in REPORT["answers"] if t["temperature"] == temperature}
        lookup = [f"{texts[name]['prompt_lookup']['tau']:.2f}" for name in SETS[:-1]]
        loops = [f"{100 * texts[name]['loop_share']:.0f} %" for name in SETS[:-1]]
        assert table == [
            *(
                [variant, *(_tau(CELLS[name, temperature, variant, 64]) for name in SETS)]
                for variant in MEASURED
            ),
            ["prompt lookup", *lookup, ""],
            ["loops", *loops, ""],
        ]


def test_ratios_at_64_rows() -> None:
    tables = _tables("Ratios at 64 rows")
    assert len(tables) == len(TEMPERATURES)
    for temperature, table in zip(TEMPERATURES, tables, strict=True):
        assert table == [
            [variant, to, *(_ratio((name, temperature, variant, 64)) for name in SETS)]
            for variant, to in BESIDE.items()
        ]


def test_by_budget() -> None:
    tables = _tables("By budget, all sets")
    assert len(tables) == len(TEMPERATURES)
    for temperature, table in zip(TEMPERATURES, tables, strict=True):
        assert [row[0] for row in table[:-1]] == [
            "base",
            "all-children",
            "marginal",
            "marginal-all-children",
        ]
        for variant, *told in table[:-1]:
            of = [CELLS["all sets", temperature, variant, budget] for budget in BUDGETS]
            assert told == [_tau(cell) for cell in of]
        keys = [("all sets", temperature, "marginal", budget) for budget in BUDGETS]
        assert table[-1] == ["marginal to base", *map(_ratio, keys)]
        ratios = [CELLS[key]["ratio"]["ratio"] for key in keys]
        assert ratios == sorted(ratios, reverse=True)  # the larger the tree, the more it is worth


def test_a_quarter_of_the_rows() -> None:
    (table,) = _tables("Ours at 64 rows, the paper's at 256")
    for temperature, row in zip(TEMPERATURES, table, strict=True):
        expected = [str(temperature)]
        for name in SETS:
            ours = CELLS[name, temperature, "base", 64]
            theirs = CELLS[name, temperature, "marginal-all-children", 256]
            assert ours["tau_interval"][0] > theirs["tau_interval"][1]
            ratio = ours["tau"] / theirs["tau"]
            expected.append(f"{ours['tau']:.2f} / {theirs['tau']:.2f} = {ratio:.3f}")
        assert row == expected


def test_beside_the_paper() -> None:
    (table,) = _tables("Beside the paper")
    assert sorted(row[1] for row in table) == sorted(BESIDE)
    for _, variant, *told in table:
        ratios = [_ratio(("all sets", t, variant, 64)).split()[0] for t in TEMPERATURES]
        assert told[:2] == ratios
    assert f"the chain has {_ratio(('gsm8k', 0, 'chain', 256))} of the tree's" in PAGE


def test_the_loss_and_the_texts() -> None:
    tables = _tables("The loss and the texts")
    assert len(tables) == len(TEMPERATURES)
    started = SESSIONS["runs"]["then-reverse-kl-s0"]["start_head"]["sha256"]
    (start,) = (run for run in BASES if run["weights_sha256"] == started)
    names = ["cross-entropy", "twice-as-long", "then-reverse-kl"]
    names += ["corpus-answers", "greedy-answers", "sampled-answers"]
    for temperature, table in zip(TEMPERATURES, tables, strict=True):
        assert [row[0] for row in table[:-2]] == names
        for variant, other, *told in table[:-2]:
            of = [_ratio(("all sets", temperature, variant, budget)) for budget in BUDGETS]
            assert [other, *told] == [BESIDE[variant], *of]
        more = {
            "sampled-answers": ("base", _run("base")),
            "then-reverse-kl": ("its own start", start),
        }
        for (variant, (other, run)), row in zip(more.items(), table[-2:], strict=True):
            of = [_between(_run(variant), run, "all sets", temperature, b) for b in BUDGETS]
            assert row == [variant, other, *of]


def test_what_is_said_of_the_loss_and_the_texts() -> None:
    prose = PAGE.split("### The loss and the texts")[1].split("\n### ")[0]
    for key in (
        ("gsm8k", 0, "cross-entropy", 64),
        ("gsm8k", 0, "corpus-answers", 256),
        ("gsm8k", 0, "greedy-answers", 64),
    ):
        assert _ratio(key) in prose
    for temperature in TEMPERATURES:
        over_all = [("all sets", temperature, "then-reverse-kl", budget) for budget in BUDGETS]
        ratios = [CELLS[key]["ratio"]["ratio"] for key in over_all]
        assert ratios == sorted(ratios, reverse=True)
        for ratio in (ratios[BUDGETS.index(64)], ratios[-1]):
            assert re.search(rf"\b{100 * (1 - ratio):.1f}\b", prose)
        for name in SETS:
            for budget in BUDGETS:
                assert _ends(_ratio((name, temperature, "then-reverse-kl", budget)))[1] < 1
            assert _ends(_ratio((name, temperature, "corpus-answers", 64)))[1] < 1
            assert _ends(_ratio((name, temperature, "twice-as-long", 64)))[0] > 1
        trained = [v for v in BESIDE if BESIDE[v] == "base" and f"{v}-s0" in SESSIONS["runs"]]
        assert "corpus-answers" == min(
            trained, key=lambda v: CELLS["all sets", temperature, v, 64]["tau"]
        )
    tokens = {run: of["data_tokens"] for run, of in SESSIONS["runs"].items()}
    for run in ("corpus-answers-s0", "base-s0", "greedy-answers-s0", "sampled-answers-s0"):
        assert f"{tokens[run]:,}" in prose
        assert re.search(rf"{1200 / SESSIONS['runs'][run]['steps_an_epoch']:.1f}\s+times", prose)


def test_what_is_said_of_greedy_and_sampled_answers() -> None:
    for name in SETS:
        assert _ends(_ratio((name, 0.7, "greedy-answers", 64)))[1] < 1
    alone = {"greedy-answers": 0, "sampled-answers": 0.7}
    for variant, own in alone.items():
        for temperature in TEMPERATURES:
            of = [
                _between(_run(variant), _run("base"), "all sets", temperature, budget)
                for budget in BUDGETS
            ]
            low, high = _ends(of[BUDGETS.index(64)])
            assert low < 1 < high if temperature == own else high < 1
            assert max(float(told.split()[0]) for told in of) < 1.01


def test_the_size_of_the_head() -> None:
    tables = _tables("The size of the head")
    assert len(tables) == len(TEMPERATURES)
    names = ["layers-1", "layers-2", "layers-5", "block-8", "block-12"]
    found: dict[str, list[float]] = {name: [] for name in names}
    for temperature, table in zip(TEMPERATURES, tables, strict=True):
        assert [row[:2] for row in table] == [[name, "base"] for name in names]
        for variant, _, *told in table:
            assert told == [_ratio(("all sets", temperature, variant, b)) for b in BUDGETS]
            found[variant] += [float(each.split()[0]) for each in told]
    for one, two, five in zip(*(found[name] for name in names[:3]), strict=True):
        assert two / one > 1 / two > 1 and 1.04 < five < 1.065
    assert max(abs(each - 1) for each in found["block-12"]) < 0.0051
    small = min(found["block-8"])
    assert small == found["block-8"][len(BUDGETS) - 1] and small == round(1 - 0.024, 3)
    assert found["block-8"][0] > 1 and found["block-8"][len(BUDGETS)] > 1
    assert f"{CELLS['gsm8k', 0, 'base', 256]['tau']:.2f} on GSM8K" in PAGE


def _ends(ratio: str) -> tuple[float, float]:
    low, high = ratio.split("(")[1].rstrip(")").split(" to ")
    return float(low), float(high)


def test_the_same_training_three_times() -> None:
    assert len({run["weights_sha256"]["model.safetensors"] for run in BASES}) == 3
    assert {(run["seed"], run["steps"]) for run in BASES} == {(0, 1200)}
    first, second, third = BASES
    pairs = {
        "second to first": (second, first),
        "third to first": (third, first),
        "third to second": (third, second),
    }
    ratios = {
        (pair, name, temperature, budget): _between(*runs, name, temperature, budget)
        for pair, runs in pairs.items()
        for name in SETS
        for temperature in TEMPERATURES
        for budget in BUDGETS
    }
    (table,) = _tables("The same training three times")
    assert table == [
        [pair, str(temperature), *(ratios[pair, name, temperature, 64] for name in SETS)]
        for pair in pairs
        for temperature in TEMPERATURES
    ]
    apart = {key: abs(float(told.split()[0]) - 1) for key, told in ratios.items()}
    over_all = {key: value for key, value in apart.items() if key[1] == "all sets"}
    assert f"{100 * max(over_all.values()):.1f} % at most" in PAGE
    assert f"up to {100 * max(apart.values()):.1f} %" in PAGE
    for key in over_all:
        low, high = _ends(ratios[key])
        assert low <= 1 <= high


def test_what_broke_off_was_begun_again() -> None:
    broken, steps = SESSIONS["broken_off"], SESSIONS["first_steps_of_base"]
    assert f"{broken['metrics'][-1]['step']} steps of base with {broken['error']}" in PAGE
    assert steps["third"] == broken["metrics"]
    assert steps["first"][0] != steps["second"][0] != steps["third"][0] != steps["first"][0]
    again = SESSIONS["runs"][broken["run"]]
    assert again["session"] == "third" and again["date"] > broken["date"]
    for run, step in SESSIONS["resumed"].items():
        assert f"{run.removesuffix('-s0')} after step {step}" in PAGE


def test_all_sessions_had_the_same_data() -> None:
    assert SESSIONS["data"].keys() == SESSIONS["provenance"].keys()
    assert all(data == REPORT["data"] for data in SESSIONS["data"].values())
    for word in ("greedy", "sampled"):
        assert f"`{REPORT['data'][word]['manifest_sha256'][:8]}...`" in PAGE
    for run in SESSIONS["runs"].values():
        known = {word: REPORT["data"][word]["manifest_sha256"] for word in run["data"]}
        assert run["data"] == known
    trained = {run["run"] for run in REPORT["runs"]}
    assert SESSIONS["runs"].keys() == trained
    for run, base in (("then-reverse-kl-s0", BASES[1]), ("twice-as-long-s0", BASES[2])):
        assert SESSIONS["runs"][run]["start_head"]["sha256"] == base["weights_sha256"]
    seconds = {
        run["arguments"][run["arguments"].index("--max-seconds") + 1]
        for run in SESSIONS["runs"].values()
    }
    told = PAGE.split("<!-- table: command")[0]
    assert seconds == set(re.findall(r"with (\d{3})\s", told))


def test_the_runs_are_the_recorded_ones() -> None:
    runs = {run["variant"]: run for run in REPORT["runs"] if run["run"] == f"{run['variant']}-s0"}
    rows = re.findall(r"^\| ([\w-]+) \| [^|]+ \| ([\d,]{9,}) \|$", PAGE, re.M)
    assert rows == [(v, f"{runs[v]['parameters']:,}") for v in MEASURED if v in runs]
    assert len(rows) == 18 and "eighteen heads" in PAGE
    for run in REPORT["runs"]:
        slots = {row["head_slots"] for row in run["policies"]}
        assert slots == {int((re.findall(r"block-(\d+)", run["variant"]) or ["16"])[0])}
        assert (run["steps"], run["loss_rows"]) == (1200, 3_072_000 * (min(slots) - 1))
        assert f"{run['loss_rows']:,.0f} loss rows" in PAGE
    assert {run["seed"] for run in REPORT["runs"]} == {0}
    assert not {f"{variant}-s0" for variant in runs} & set(REPORT["missing"])
    where = REPORT["provenance"]
    assert where["device_name"] == "NVIDIA H200"
    for package in ("torch", "transformers", "triton"):
        assert re.search(rf"{package}\s{re.escape(where['packages'][package])}", PAGE)
    command = PAGE.split("jetflow ablate ")[1].split("```")[0].replace("\\\n", "")
    assert command.split() == where["arguments"][2:]


def test_the_figures_are_those_of_the_counts() -> None:
    pooled: dict[tuple[str, float, str, int], list[int]] = {}
    for run in REPORT["runs"]:
        for row in run["policies"]:
            for name in (row["set"], "all sets"):
                key = (name, row["temperature"], run["variant"], row["budget"])
                sums = pooled.setdefault(key, [0, 0])
                sums[0] += sum(row["tokens"])
                sums[1] += sum(row["rounds"])
    assert pooled.keys() == CELLS.keys()
    for key, (tokens, rounds) in pooled.items():
        assert abs(CELLS[key]["tau"] - tokens / rounds) < 1e-9
        against = AGAINST[key[2]]
        if against not in MEASURED:
            assert CELLS[key]["ratio"] is None
        else:
            other = CELLS[key[0], key[1], against, key[3]]
            assert abs(CELLS[key]["ratio"]["ratio"] - CELLS[key]["tau"] / other["tau"]) < 1e-9


@pytest.mark.slow
def test_the_script_leaves_the_page_as_it_is() -> None:
    place = FOLDER.parents[1] / ".ci" / "ablation_tables.py"
    spec = importlib.util.spec_from_file_location("ablation_tables", place)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    made = script.makers(script.Figures(REPORT), SESSIONS)
    row = next(line for line in PAGE.splitlines() if line.startswith("| base | 5."))
    assert script.page(PAGE.replace(row, "| base |"), made) == PAGE
    with pytest.raises(ValueError, match=r"by hand: \['adamw', 'other'\]"):
        script.page(PAGE.replace("| adamw | AdamW for all matrices |", "| other | |"), made)
