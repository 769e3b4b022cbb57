"""The page about the paper's ablations says on what machines and data its runs were made."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
REPORT: dict[str, Any] = json.loads((FOLDER / "ablations-h200-2026-11-30.json").read_text("utf-8"))
SESSIONS: dict[str, Any] = json.loads(
    (FOLDER / "ablations-sessions-h200-2026-11-30.json").read_text(encoding="utf-8")
)
PAGE = (FOLDER / "ablations.md").read_text(encoding="utf-8")
BASES = [*SESSIONS["earlier_bases"], *(r for r in REPORT["runs"] if r["variant"] == "base")]
TRAINED = [each["name"] for each in REPORT["plan"]["variants"] if "of" not in each]


def test_what_broke_off_was_begun_again_or_went_on() -> None:
    (begun, gone), steps = SESSIONS["broken_off"], SESSIONS["first_steps_of_base"]
    assert f"{begun['metrics'][-1]['step']} steps of base with {begun['error']}" in PAGE
    assert steps["third"] == begun["metrics"]
    assert steps["first"][0] != steps["second"][0] != steps["third"][0] != steps["first"][0]
    again = SESSIONS["runs"][begun["run"]]
    assert again["session"] == "third" and again["date"] > begun["date"]
    assert (gone["run"], gone["session"]) == ("marginal-s1", "fourth")
    assert f"{gone['metrics'][-1]['step']} steps of marginal with {gone['error']}" in PAGE
    first, *others = gone["went_on"]
    known = {row["step"]: row for row in gone["metrics"]}
    assert first["step"] == 275 and first != known[275]  # only what came after the saved state
    assert others == gone["metrics"][-len(others) :] and others[0]["step"] == 300
    assert "between steps 250 and 275, and from step 300 to 550" in PAGE
    told = " ".join(PAGE.split())
    for run, step in SESSIONS["resumed"].items():
        assert f"{re.sub(r'-s[01]$', '', run)} after step {step}" in told


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
    _, second, third, other_seed = BASES
    for run, base in (
        ("then-reverse-kl-s0", second),
        ("twice-as-long-s0", third),
        ("then-reverse-kl-s1", other_seed),
        ("twice-as-long-s1", other_seed),
    ):
        assert SESSIONS["runs"][run]["start_head"]["sha256"] == base["weights_sha256"]
    seconds = {
        run["arguments"][run["arguments"].index("--max-seconds") + 1]
        for run in SESSIONS["runs"].values()
    }
    told = PAGE.split("<!-- table: command")[0]
    assert seconds == set(re.findall(r"with (\d{3})\b", told))


def test_the_fourth_session_trained_what_was_missing() -> None:
    mine = {run for run, of in SESSIONS["runs"].items() if of["session"] == "fourth"}
    assert mine == {*(f"{name}-s1" for name in TRAINED), "filled-s0", "filled-path-s0"}
    assert len(mine) == 22 and "the other 22" in PAGE
    assert SESSIONS["provenance"]["fourth"] == REPORT["provenance"]
    assert REPORT["complete"] and not REPORT["missing"]
    assert REPORT["provenance"]["git"] is None and "names no revision" in PAGE
    assert {of["git"] is None for run, of in SESSIONS["runs"].items() if run in mine} == {True}
    assert all(of["git"] for run, of in SESSIONS["runs"].items() if run not in mine)


def test_the_runs_are_the_recorded_ones() -> None:
    runs = {run["variant"]: run for run in REPORT["runs"]}
    rows = re.findall(r"^\| ([\w-]+) \| [^|]+ \| ([\d,]{9,}) \|$", PAGE, re.M)
    assert rows == [(name, f"{runs[name]['parameters']:,}") for name in TRAINED]
    assert len(rows) == 20 and "twenty heads" in PAGE
    every = [(each["name"], seed) for each in REPORT["plan"]["variants"] for seed in (0, 1)]
    assert sorted(every) == sorted((run["variant"], run["seed"]) for run in REPORT["runs"])
    for run in REPORT["runs"]:
        block = int((re.findall(r"block-(\d+)", run["variant"]) or ["16"])[0])
        twice = run["variant"].endswith("second-pass")
        for row in run["policies"]:
            assert row["head_slots"] == block + twice * 2 * row["budget"]
        assert (run["steps"], run["loss_rows"]) == (1200, 3_072_000 * (block - 1))
        assert f"{run['loss_rows']:,.0f} loss rows" in PAGE
    where = REPORT["provenance"]
    assert where["device_name"] == "NVIDIA H200"
    for package in ("torch", "transformers", "triton"):
        assert re.search(rf"{package}\s{re.escape(where['packages'][package])}", PAGE)
    command = PAGE.split("jetflow ablate ")[1].split("```")[0].replace("\\\n", "")
    assert command.split() == where["arguments"][2:]


def test_the_figures_are_those_of_the_counts() -> None:
    cells = {
        (group["set"], group["temperature"], row["variant"], cell["budget"]): cell
        for group in REPORT["figures"]
        for row in group["variants"]
        for cell in row["budgets"]
    }
    against = {each["name"]: each.get("against") for each in REPORT["plan"]["variants"]}
    pooled: dict[tuple[str, float, str, int], list[int]] = {}
    for run in REPORT["runs"]:
        for row in run["policies"]:
            for name in (row["set"], "all sets"):
                key = (name, row["temperature"], run["variant"], row["budget"])
                sums = pooled.setdefault(key, [0, 0])
                sums[0] += sum(row["tokens"])
                sums[1] += sum(row["rounds"])
    assert pooled.keys() == cells.keys()
    for key, (tokens, rounds) in pooled.items():
        assert abs(cells[key]["tau"] - tokens / rounds) < 1e-9
        if against[key[2]] is None:
            assert cells[key]["ratio"] is None
        else:
            other = cells[key[0], key[1], against[key[2]], key[3]]
            assert abs(cells[key]["ratio"]["ratio"] - cells[key]["tau"] / other["tau"]) < 1e-9


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
