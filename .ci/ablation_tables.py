"""Writes the figures of the page about the paper's ablations from what the study recorded.

``python .ci/ablation_tables.py STUDY/results.json`` puts a newer report of the study in place of
the stored one first; without an argument the stored one is read. What heads of the study did at
temperature 1 stands in a file of its own, of ``jetflow eval``. Prose is written by hand: where a
table has words beside its figures, only the figures change, and a variant without a row is named.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from jetflow_train.ablation.figures import ALL_SETS, figures

FOLDER = Path(__file__).parents[1] / "docs/benchmarks"
PAGE = FOLDER / "ablations.md"
REPORT = FOLDER / "ablations-h200-2026-11-30.json"
SESSIONS = FOLDER / "ablations-sessions-h200-2026-11-30.json"
HOT = FOLDER / "ablations-t1-h200-2026-11-30.json"
END = "<!-- end of table -->"
BUDGET = 64
PAPERS_BUDGET = 256
LEARNING = (
    "cross-entropy",
    "twice-as-long",
    "then-reverse-kl",
    "corpus-answers",
    "greedy-answers",
    "sampled-answers",
)
"""Variants that differ in what is learnt, for how long, or from what."""
SIZES = ("layers-1", "layers-2", "layers-5", "block-8", "block-12")
"""Variants that differ in the size of the head."""
TWICE = ("filled-second-pass", "filled-path-second-pass")
"""Trees for which the head runs twice."""

Cell = Mapping[str, Any]
Cells = dict[tuple[str, float, str, int], Cell]
"""By set, temperature, variant and budget."""
Runs = Sequence[Mapping[str, Any]]


def cells(groups: Sequence[Mapping[str, Any]]) -> Cells:
    """Every cell of a report's figures."""
    return {
        (group["set"], group["temperature"], row["variant"], cell["budget"]): cell
        for group in groups
        for row in group["variants"]
        for cell in row["budgets"]
    }


def paired(runs: Runs, to: Runs, keys: Mapping[str, float]) -> Cells:
    """The cells of some runs with their ratios to others of the same seeds, pooled.

    Args:
        runs: of one variant, one for each seed.
        to: the same.
        keys: what the rows have to say, as their temperature or budget.
    """
    pair = {"variants": [{"name": "other"}, {"name": "run", "against": "other"}]}
    both = [
        {
            **each,
            "variant": name,
            "policies": [row for row in each["policies"] if keys.items() <= row.items()],
        }
        for name, some in (("other", to), ("run", runs))
        for each in some
    ]
    return {key: cell for key, cell in cells(figures(pair, both)).items() if key[2] == "run"}


class Figures:
    """A report, and what every variant stands beside."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self.report = report
        self.cells = cells(report["figures"])
        self.sets = list(dict.fromkeys(key[0] for key in self.cells))
        plan = report["plan"]
        self.temperatures: list[float] = plan["eval"]["temperatures"]
        self.budgets: list[int] = plan["eval"]["budgets"]
        names = {key[2] for key in self.cells}
        self.measured = [each["name"] for each in plan["variants"] if each["name"] in names]
        self.beside: dict[str, str] = {
            each["name"]: each["against"]
            for each in plan["variants"]
            if each["name"] in names and each.get("against") in names
        }

    def runs(self, name: str) -> Runs:
        """Of a variant, seed by seed."""
        return [run for run in self.report["runs"] if run["variant"] == name]

    def over_sets(self, temperature: float, name: str) -> list[Cell]:
        """The cells at 64 rows, set by set."""
        return [self.cells[each, temperature, name, BUDGET] for each in self.sets]

    def over_budgets(self, temperature: float, name: str) -> list[Cell]:
        """The cells over all sets, budget by budget."""
        return [self.cells[ALL_SETS, temperature, name, budget] for budget in self.budgets]


def tau(cell: Cell) -> str:
    """Of one cell, with its interval."""
    low, high = cell["tau_interval"]
    return f"{cell['tau']:.2f} ({low:.2f} to {high:.2f})"


def ratio(cell: Cell) -> str:
    """Of one cell, with its interval."""
    low, high = cell["ratio"]["interval"]
    return f"{cell['ratio']['ratio']:.3f} ({low:.3f} to {high:.3f})"


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Markdown."""
    lines = [_row(head), "|---" * len(head) + "|", *map(_row, rows)]
    return "\n".join(lines)


def _row(row: Sequence[object]) -> str:
    return "|" + "|".join(f" {cell} " if str(cell) else " " for cell in row) + "|"


def taus_table(of: Figures, temperature: float) -> str:
    """The tau of every variant at 64 rows, and what the texts are like."""
    texts = {t["set"]: t for t in of.report["answers"] if t["temperature"] == temperature}
    rows = [[name, *map(tau, of.over_sets(temperature, name))] for name in of.measured]
    lookup = [f"{texts[name]['prompt_lookup']['tau']:.2f}" for name in of.sets[:-1]]
    loops = [f"{100 * texts[name]['loop_share']:.0f} %" for name in of.sets[:-1]]
    return table(
        ["variant", *of.sets], [*rows, ["prompt lookup", *lookup, ""], ["loops", *loops, ""]]
    )


def ratios_table(of: Figures, temperature: float) -> str:
    """Ratios of every variant at 64 rows."""
    rows = [
        [name, other, *map(ratio, of.over_sets(temperature, name))]
        for name, other in of.beside.items()
    ]
    return table(["variant", "to", *of.sets], rows)


def budgets_table(of: Figures, temperature: float) -> str:
    """The head with the path term and without it, by budget."""
    names = ("base", "all-children", "marginal", "marginal-all-children")
    rows = [[name, *map(tau, of.over_budgets(temperature, name))] for name in names]
    last = ["marginal to base", *map(ratio, of.over_budgets(temperature, "marginal"))]
    return table(["variant", *of.budgets], [*rows, last])


def learning_table(of: Figures, sessions: Mapping[str, Any], temperature: float) -> str:
    """Ratios of other losses and other texts, by budget."""
    rows = [_by_budget(of, temperature, name) for name in LEARNING]
    for name, other, start in (
        ("sampled-answers", "base", of.runs("base")),
        ("then-reverse-kl", "its own start", starts_of_reverse(of, sessions)),
    ):
        rows.append([name, other, *_paired_by_budget(of, temperature, name, start)])
    return table(["variant", "to", *of.budgets], rows)


def passes_table(of: Figures, temperature: float) -> str:
    """Heads that learnt from filled blocks, run once and twice, by budget."""
    rows = [_by_budget(of, temperature, n) for n in ("filled", "filled-path", *TWICE)]
    for name in TWICE:
        once = name.removesuffix("-second-pass")
        rows.append([name, once, *_paired_by_budget(of, temperature, name, of.runs(once))])
    slots = {row["budget"]: row["head_slots"] for row in of.runs(TWICE[0])[0]["policies"]}
    rows.append(["slots of the head a round", "", *(slots[budget] for budget in of.budgets)])
    return table(["variant", "to", *of.budgets], rows)


def sizes_table(of: Figures, temperature: float) -> str:
    """Ratios of smaller and larger heads, by budget."""
    rows = [_by_budget(of, temperature, name) for name in SIZES]
    return table(["variant", "to", *of.budgets], rows)


def _by_budget(of: Figures, temperature: float, name: str) -> list[object]:
    return [name, of.beside[name], *map(ratio, of.over_budgets(temperature, name))]


def _paired_by_budget(of: Figures, temperature: float, name: str, to: Runs) -> list[str]:
    found = paired(of.runs(name), to, {"temperature": temperature})
    return [ratio(found[ALL_SETS, temperature, "run", budget]) for budget in of.budgets]


def starts_of_reverse(of: Figures, sessions: Mapping[str, Any]) -> Runs:
    """The trainings of base whose heads learnt on with reverse KL, seed by seed."""
    known = [*sessions["earlier_bases"], *of.runs("base")]
    began = [
        sessions["runs"][run["run"]]["start_head"]["sha256"] for run in of.runs("then-reverse-kl")
    ]
    return [next(each for each in known if each["weights_sha256"] == one) for one in began]


def seeds_table(of: Figures) -> str:
    """Each seed's ratio at 64 rows over all sets, and how far the last is from the first."""
    seeds = of.report["plan"]["seeds"]
    head: list[object] = ["variant", "to"]
    for temperature in of.temperatures:
        head += [*(f"T {temperature}, seed {seed}" for seed in seeds), "apart"]
    rows = []
    for name, other in (("base", "(its tau)"), *of.beside.items()):
        row: list[object] = [name, other]
        for temperature in of.temperatures:
            cell = of.cells[ALL_SETS, temperature, name, BUDGET]
            each = cell["ratio"]["by_seed"] if name != "base" else cell["tau_by_seed"]
            apart = round(100 * (each[-1] / each[0] - 1), 1) + 0.0  # no -0.0
            row += [*(f"{one:.3f}" for one in each), f"{apart:+.1f} %"]
        rows.append(row)
    return table(head, rows)


def quarter_table(of: Figures) -> str:
    """Our trees at 64 rows over the reference's at 256."""
    rows = []
    for temperature in of.temperatures:
        row: list[object] = [temperature]
        for name in of.sets:
            ours = of.cells[name, temperature, "base", BUDGET]["tau"]
            theirs = of.cells[name, temperature, "marginal-all-children", PAPERS_BUDGET]["tau"]
            row.append(f"{ours:.2f} / {theirs:.2f} = {ours / theirs:.3f}")
        rows.append(row)
    return table(["temperature", *of.sets], rows)


def thrice_table(of: Figures, sessions: Mapping[str, Any]) -> str:
    """The heads of three trainings of base to each other."""
    first, second = sessions["earlier_bases"]
    (third,) = (run for run in of.runs("base") if run["seed"] == first["seed"])
    rows = []
    for name, run, other in (
        ("second to first", second, first),
        ("third to first", third, first),
        ("third to second", third, second),
    ):
        found = paired([run], [other], {"budget": BUDGET})
        rows += [
            [
                name,
                temperature,
                *(ratio(found[each, temperature, "run", BUDGET]) for each in of.sets),
            ]
            for temperature in of.temperatures
        ]
    return table(["heads of base", "temperature", *of.sets], rows)


def hot_table(report: Mapping[str, Any]) -> str:
    """A head with the path term and one without it at temperature 1, set by set and pooled."""
    found: dict[tuple[str, str, int], Runs] = {}
    for each in report["sets"]:
        for row in each["temperatures"][0]["rows"]:
            if row["candidates"] == "head":
                key = (row["head"].split("-s")[0], row["kind"], row["budget"])
                found[key] = [*found.get(key, ()), row]
    pooled = {
        k: sum(r["tokens"] for r in v) / sum(r["rounds"] for r in v) for k, v in found.items()
    }
    budgets = report["settings"]["budgets"]
    theirs = ("marginal", "all-children", PAPERS_BUDGET)
    rows: list[list[object]] = []
    for head in ("base", "marginal"):
        for budget in budgets:
            key = (head, "tree", budget)
            rows.append([head, budget, *map(tau, found[key]), f"{pooled[key]:.2f}"])
    for budget in budgets:
        mine, other = ("marginal", "tree", budget), ("base", "tree", budget)
        held = [ratio({"ratio": row["ratio_to_first"]}) for row in found[mine]]
        rows.append(["marginal to base", budget, *held, f"{pooled[mine] / pooled[other]:.3f}"])
    rows.append(
        ["marginal, all children", theirs[2], *map(tau, found[theirs]), f"{pooled[theirs]:.2f}"]
    )
    ours = ("base", "tree", BUDGET)
    both = zip(found[ours], found[theirs], strict=True)
    quarter = [mine["tau"] / other["tau"] for mine, other in both]
    quarter.append(pooled[ours] / pooled[theirs])
    rows.append(["base to it", f"{BUDGET} to {theirs[2]}", *(f"{one:.3f}" for one in quarter)])
    sets = [each["name"] for each in report["sets"]]
    return table(["trees", "rows", *sets, ALL_SETS], rows)


def command(of: Figures) -> str:
    """The call that wrote the report."""
    words = " ".join(of.report["provenance"]["arguments"][1:])
    lines = words.replace(" --data", " \\\n    --data", 1)
    return f"```\njetflow {lines}\n```"


def refreshed(old: str, rows: Mapping[str, Sequence[str]], variant: int, first: int) -> str:
    """A table whose words stay.

    Args:
        old: the table.
        rows: the new cells of each variant.
        variant: column of its name.
        first: column of the first new cell.

    Raises:
        ValueError: the table's variants are others.
    """
    lines = old.strip().splitlines()
    found = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    names = [row[variant] for row in found[2:]]
    if set(names) != set(rows):
        raise ValueError(
            f"write or delete by hand: {sorted(set(names) ^ set(rows))} in\n{lines[0]}"
        )
    for row in found[2:]:
        new = rows[row[variant]]
        row[first : first + len(new)] = new
    return table(found[0], found[2:])


def makers(of: Figures, sessions: Mapping[str, Any]) -> dict[str, Callable[[str], str]]:
    """What every table becomes, from what it was."""
    weights = {run["variant"]: [f"{run['parameters']:,}"] for run in of.report["runs"]}
    trained = {each["name"]: "of" not in each for each in of.report["plan"]["variants"]}
    heads = {name: weights[name] for name in of.measured if trained[name]}
    beside = {
        name: [
            f"{of.cells[ALL_SETS, temperature, name, BUDGET]['ratio']['ratio']:.3f}"
            for temperature in of.temperatures
        ]
        for name in of.beside
    }
    found: dict[str, Callable[[str], str]] = {
        "command": lambda _: command(of),
        "heads": lambda old: refreshed(old, heads, 0, 2),
        "beside the paper": lambda old: refreshed(old, beside, 1, 2),
        "a quarter of the rows": lambda _: quarter_table(of),
        "trained three times": lambda _: thrice_table(of, sessions),
        "by seed": lambda _: seeds_table(of),
        "temperature 1": lambda _: hot_table(json.loads(HOT.read_text(encoding="utf-8"))),
    }
    by_temperature = {
        "by budget": budgets_table,
        "learning": partial(_learning, sessions),
        "sizes": sizes_table,
        "passes": passes_table,
        "tau": taus_table,
        "ratios": ratios_table,
    }
    for name, make in by_temperature.items():
        for t in of.temperatures:
            found[f"{name}, temperature {t}"] = partial(_made_for, make, of, t)
    return found


def _learning(sessions: Mapping[str, Any], of: Figures, temperature: float) -> str:
    return learning_table(of, sessions, temperature)


def _made_for(make: Callable[[Figures, float], str], of: Figures, t: float, _: str) -> str:
    return make(of, t)


def page(text: str, made: Mapping[str, Callable[[str], str]]) -> str:
    """The page with every table made again.

    Raises:
        ValueError: a table's marks are missing.
    """
    for name, make in made.items():
        marks = rf"(<!-- table: {re.escape(name)} -->\n)(.*?)({re.escape(END)})"
        match = re.search(marks, text, re.S)
        if match is None:
            raise ValueError(f"{PAGE.name} lacks the marks of the table {name!r}")
        new = f"{match[1]}\n{make(match[2])}\n\n{match[3]}"
        text = text[: match.start()] + new + text[match.end() :]
    return text


def main() -> None:
    """Writes the page."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else REPORT
    of = Figures(json.loads(source.read_text(encoding="utf-8")))
    sessions = json.loads(SESSIONS.read_text(encoding="utf-8"))
    fresh = page(PAGE.read_text(encoding="utf-8"), makers(of, sessions))
    if source != REPORT:
        shutil.copyfile(source, REPORT)
    PAGE.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
