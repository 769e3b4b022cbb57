"""The page about the paper's ablations says what the study recorded."""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
FILE = "ablations-h200-2026-11-30.json"
REPORT: dict[str, Any] = json.loads((FOLDER / FILE).read_text(encoding="utf-8"))
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


def _ratio(cell: dict[str, Any]) -> str:
    low, high = cell["ratio"]["interval"]
    return f"{cell['ratio']['ratio']:.3f} ({low:.3f} to {high:.3f})"


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
            [variant, to, *(_ratio(CELLS[name, temperature, variant, 64]) for name in SETS)]
            for variant in MEASURED
            if (to := AGAINST[variant]) is not None
        ]


def test_by_budget() -> None:
    tables = _tables("By budget, all sets")
    assert len(tables) == len(TEMPERATURES)
    budgets = REPORT["plan"]["eval"]["budgets"]
    for temperature, table in zip(TEMPERATURES, tables, strict=True):
        assert [row[0] for row in table[:-1]] == [
            "base",
            "all-children",
            "marginal",
            "marginal-all-children",
        ]
        for variant, *told in table[:-1]:
            of = [CELLS["all sets", temperature, variant, budget] for budget in budgets]
            assert told == [_tau(cell) for cell in of]
        of = [CELLS["all sets", temperature, "marginal", budget] for budget in budgets]
        assert table[-1] == ["marginal to base", *(_ratio(cell) for cell in of)]
        ratios = [cell["ratio"]["ratio"] for cell in of]
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
    assert sorted(row[1] for row in table) == sorted(v for v in MEASURED if AGAINST[v])
    for _, variant, greedy, sampled, *_ in table:
        ratios = [CELLS["all sets", t, variant, 64]["ratio"]["ratio"] for t in TEMPERATURES]
        assert [greedy, sampled] == [f"{ratio:.3f}" for ratio in ratios]
    assert f"the chain has {_ratio(CELLS['gsm8k', 0, 'chain', 256])} of the tree's" in PAGE


def test_the_runs_are_the_recorded_ones() -> None:
    runs = {run["variant"]: run for run in REPORT["runs"] if run["run"] == f"{run['variant']}-s0"}
    rows = re.findall(r"^\| ([\w-]+) \| [^|]+ \| ([\d,]{9,}) \|$", PAGE, re.M)
    assert rows == [(v, f"{runs[v]['parameters']:,}") for v in MEASURED if v in runs]
    assert len(rows) == 7 and "seven heads" in PAGE
    assert {(run["steps"], run["loss_rows"]) for run in REPORT["runs"]} == {(1200, 46_080_000)}
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
        if against is not None:
            other = CELLS[key[0], key[1], against, key[3]]
            assert abs(CELLS[key]["ratio"]["ratio"] - CELLS[key]["tau"] / other["tau"]) < 1e-9
