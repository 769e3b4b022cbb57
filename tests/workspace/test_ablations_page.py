"""The page about the paper's ablations says what the study recorded."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

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
BASES = [*SESSIONS["earlier_bases"], *(r for r in REPORT["runs"] if r["variant"] == "base")]
Runs = list[dict[str, Any]]


def _tables(heading: str) -> list[list[list[str]]]:
    """The tables of a section, each as rows of cells without its head."""
    found = re.findall(r"(?:^\|.*\|\n)+", _section(heading), re.M)
    return [[_cells(row) for row in table.splitlines()[2:]] for table in found]


def _section(heading: str) -> str:
    return re.split(r"^##+ ", PAGE.split(f"# {heading}\n")[1], flags=re.M)[0]


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row[1:-1].split("|")]


def _tau(cell: dict[str, Any]) -> str:
    low, high = cell["tau_interval"]
    return f"{cell['tau']:.2f} ({low:.2f} to {high:.2f})"


def _ratio(key: tuple[str, float, str, int]) -> str:
    held = CELLS[key]["ratio"]
    return _told(held["ratio"], *held["interval"])


def _between(runs: Runs, others: Runs, name: str, temperature: float, budget: int) -> str:
    """The ratio of runs that the report does not hold against each other, from the counts."""
    return _paired(*(_rounds(some, name, temperature, budget) for some in (runs, others)))


def _told(ratio: float, low: float, high: float) -> str:
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


def _runs(variant: str) -> Runs:
    """Seed by seed."""
    found = [run for run in REPORT["runs"] if run["variant"] == variant]
    assert [run["seed"] for run in found] == REPORT["plan"]["seeds"] == [0, 1]
    return found


def _rounds(runs: Runs, name: str, temperature: float, budget: int) -> list[int]:
    """Of every prompt of a set, or of all sets in order, summed over the runs."""
    each = [
        [
            rounds
            for row in run["policies"]
            if row["set"] in (name, *(SETS[:-1] if name == "all sets" else ()))
            and (row["temperature"], row["budget"]) == (temperature, budget)
            for rounds in row["rounds"]
        ]
        for run in runs
    ]
    return [sum(of) for of in zip(*each, strict=True)]


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
    starts = []
    for run in _runs("then-reverse-kl"):
        began = SESSIONS["runs"][run["run"]]["start_head"]["sha256"]
        starts += [base for base in BASES if base["weights_sha256"] == began]
    assert [base["seed"] for base in starts] == [0, 1]
    names = ["cross-entropy", "twice-as-long", "then-reverse-kl"]
    names += ["corpus-answers", "greedy-answers", "sampled-answers"]
    for temperature, table in zip(TEMPERATURES, tables, strict=True):
        assert [row[0] for row in table[:-2]] == names
        for variant, other, *told in table[:-2]:
            of = [_ratio(("all sets", temperature, variant, budget)) for budget in BUDGETS]
            assert [other, *told] == [BESIDE[variant], *of]
        more = {
            "sampled-answers": ("base", _runs("base")),
            "then-reverse-kl": ("its own start", starts),
        }
        for (variant, (other, runs)), row in zip(more.items(), table[-2:], strict=True):
            of = [_between(_runs(variant), runs, "all sets", temperature, b) for b in BUDGETS]
            assert row == [variant, other, *of]


def test_what_is_said_of_the_loss_and_the_texts() -> None:
    prose = PAGE.split("### The loss and the texts")[1].split("\n### ")[0]
    for key in (
        ("gsm8k", 0, "cross-entropy", 64),
        ("gsm8k", 0, "corpus-answers", 256),
        ("gsm8k", 0, "greedy-answers", 64),
        ("all sets", 0, "greedy-answers", 64),
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
                _between(_runs(variant), _runs("base"), "all sets", temperature, budget)
                for budget in BUDGETS
            ]
            low, high = _ends(of[BUDGETS.index(64)])
            assert 0.99 < low < 1.002 and 1 < high if temperature == own else high < 1
            assert max(float(told.split()[0]) for told in of) < 1.01


def test_a_second_pass() -> None:
    tables = _tables("A second pass of the head")
    assert len(tables) == len(TEMPERATURES)
    names = ["filled", "filled-path", "filled-second-pass", "filled-path-second-pass"]
    for temperature, table in zip(TEMPERATURES, tables, strict=True):
        assert [row[:2] for row in table[:4]] == [[name, BESIDE[name]] for name in names]
        for variant, _, *told in table[:4]:
            assert told == [_ratio(("all sets", temperature, variant, b)) for b in BUDGETS]
        for variant, row in zip(names[2:], table[4:6], strict=True):
            once = variant.removesuffix("-second-pass")
            of = [
                _between(_runs(variant), _runs(once), "all sets", temperature, b) for b in BUDGETS
            ]
            assert row == [variant, once, *of]
        slots = {p["budget"]: p["head_slots"] for p in _runs(names[2])[0]["policies"]}
        assert slots == {budget: 16 + 2 * budget for budget in BUDGETS}
        assert table[6] == ["slots of the head a round", "", *(str(slots[b]) for b in BUDGETS)]


def test_what_is_said_of_a_second_pass() -> None:
    prose = " ".join(_section("A second pass of the head").split("\n- ", 1)[1].split())
    gains: dict[str, list[tuple[float, float, float]]] = {}
    for variant in ("filled-second-pass", "filled-path-second-pass"):
        for temperature in TEMPERATURES:
            once = variant.removesuffix("-second-pass")
            of = [CELLS["all sets", temperature, variant, b]["tau"] for b in BUDGETS]
            before = [CELLS["all sets", temperature, once, b]["tau"] for b in BUDGETS]
            gained = [100 * (mine / other - 1) for mine, other in zip(of, before, strict=True)]
            assert gained == sorted(gained)
            gains.setdefault(variant, []).append((gained[0], gained[2], gained[-1]))
            for budget in BUDGETS:
                held = CELLS["all sets", temperature, variant, budget]["ratio"]
                assert max(held["ratio"], *held["by_seed"]) < 1

    def both(variant: str, budget: int, end: str = "") -> str:
        held = [CELLS["all sets", t, variant, budget]["ratio"]["ratio"] for t in TEMPERATURES]
        return f"{held[0]:.3f} and {held[1]:.3f}{end}"

    marginal = both("marginal", 64)
    first, second = both("filled-second-pass", 64).split(" and ")
    assert f"is worth {first} of base at 64 rows and temperature 0 and {second} at 0.7" in prose
    assert f"one pass are worth {marginal}." in prose
    (_, zero, _), (_, warm, _) = gains["filled-second-pass"]
    assert f"gains {zero:.1f} and {warm:.1f} % at 64 rows" in prose
    lost = [100 * (1 - CELLS["all sets", t, "filled", 64]["ratio"]["ratio"]) for t in TEMPERATURES]
    assert f"{lost[0]:.1f} and {lost[1]:.1f} % of marginal's tau" in prose
    (none, zero, large), (neither, warm, larger) = gains["filled-path-second-pass"]
    assert max(none, neither) < 0
    assert (
        f"gains {zero:.1f} and {warm:.1f} % at 64 rows and {large:.1f} and {larger:.1f} %" in prose
    )
    assert both("filled-path-second-pass", 64, " at 64 rows") in prose
    assert both("filled-path-second-pass", 256, " at 256") in prose


def test_what_another_seed_does() -> None:
    (table,) = _tables("What another seed does")
    expected = []
    for variant, to in (("base", "(its tau)"), *BESIDE.items()):
        expected.append([variant, to])
        for temperature in TEMPERATURES:
            zero, one = _by_seed("all sets", temperature, variant, 64)
            apart = f"{100 * (one / zero - 1):+.1f} %".replace("-0.0", "+0.0")
            expected[-1] += [f"{zero:.3f}", f"{one:.3f}", apart]
    assert table == expected
    keys = [key for key in CELLS if key[2] != "base"]
    gaps = {key: abs(100 * (_by_seed(*key)[1] / _by_seed(*key)[0] - 1)) for key in keys}
    over_all = {key: value for key, value in gaps.items() if key[0] == "all sets"}
    at_64 = [value for key, value in over_all.items() if key[3] == 64]
    prose = " ".join(_section("What another seed does").split("<!-- end of table -->")[1].split())
    assert f"At most {max(at_64):.1f} % lie between" in prose and np.median(at_64) < 0.4
    assert f"at any budget it is {max(over_all.values()):.1f} % at most" in prose
    single = {key: value for key, value in gaps.items() if key[0] != "all sets" and key[3] == 64}
    largest = max(single, key=lambda key: single[key])
    assert f"{single[largest]:.1f} % (layers-2 on MBPP, temperature 0)" in prose
    assert largest == ("mbpp", 0, "layers-2", 64)
    sides = {
        key[2] for key in over_all if key[3] == 64 and np.prod(np.array(_by_seed(*key)) - 1) <= 0
    }
    assert sides == {"block-12"}
    bases = [key for key in CELLS if key[0] == "all sets" and key[2] == "base"]
    worst = max(bases, key=lambda key: abs(_by_seed(*key)[1] / _by_seed(*key)[0] - 1))
    zero, one = _by_seed(*worst)
    assert worst == ("all sets", 0.7, "base", 256)
    assert f"{100 * abs(one / zero - 1):.1f} % between the seeds" in prose


def _by_seed(name: str, temperature: float, variant: str, budget: int) -> list[float]:
    cell = CELLS[name, temperature, variant, budget]
    found: list[float] = (cell["ratio"] or {"by_seed": cell["tau_by_seed"]})["by_seed"]
    return found


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
        assert two / one > 1 / two > 1 and 1.04 < five < 1.06
    assert max(abs(each - 1) for each in found["block-12"]) < 0.0045
    small = min(found["block-8"])
    assert small == found["block-8"][len(BUDGETS) - 1] and small == round(1 - 0.026, 3)
    assert found["block-8"][0] > 1 and found["block-8"][len(BUDGETS)] > 1
    assert f"{CELLS['gsm8k', 0, 'base', 256]['tau']:.2f} on GSM8K" in PAGE


def _ends(ratio: str) -> tuple[float, float]:
    low, high = ratio.split("(")[1].rstrip(")").split(" to ")
    return float(low), float(high)


def test_the_same_training_three_times() -> None:
    same = [run for run in BASES if run["seed"] == 0]
    assert len({run["weights_sha256"]["model.safetensors"] for run in same}) == 3
    assert {run["steps"] for run in same} == {1200}
    first, second, third = same
    pairs = {
        "second to first": (second, first),
        "third to first": (third, first),
        "third to second": (third, second),
    }
    ratios = {
        (pair, name, temperature, budget): _between([run], [other], name, temperature, budget)
        for pair, (run, other) in pairs.items()
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


def test_the_page_on_the_method_says_the_same() -> None:
    told = " ".join((FOLDER.parent / "method.md").read_text(encoding="utf-8").split())
    alone, both = (
        CELLS["all sets", 0, name, 64]["ratio"]["ratio"]
        for name in ("filled-second-pass", "filled-path-second-pass")
    )
    assert f"has {alone:.3f} of the tau of a head with the path term and one pass" in told
    assert f"with both it has {both:.3f}" in told
