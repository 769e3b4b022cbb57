"""The page about the steps of a round says what the benchmark and the checks recorded."""

import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "docs/benchmarks"
PAGE = (FOLDER / "round.md").read_text(encoding="utf-8")
RECORDED: dict[str, Any] = json.loads((FOLDER / "round-h200-2026-11-30.json").read_text("utf-8"))
CHECKED = "kernels-check-h200-2026-11-30.json"
STEPS: dict[tuple[str, str], dict[str, Any]] = {
    (each["step"], each["size"]): each for each in RECORDED["results"]
}


def _median(step: str, size: str) -> float:
    found: float = next(each for (s, z), each in STEPS.items() if s == step and size in z)[
        "median_us"
    ]
    return found


def test_every_step_of_the_file_is_on_the_page() -> None:
    assert RECORDED["device"] in PAGE and RECORDED["date"][:10] in PAGE
    assert f"torch {RECORDED['torch']}, triton {RECORDED['triton']}" in PAGE
    rows = re.findall(r"^\| (?!step )(.+) \|$", PAGE, re.M)
    expected = []
    for each in RECORDED["results"]:
        assert "failed" not in each
        goal, told = each["goal_us"], ""
        if goal is not None:
            told = f"{goal:.0f}: {'met' if each['median_us'] <= goal else 'not met'}"
        beside = "; ".join(
            f"{name}: {peer['median_us']:,.1f} ({peer['ratio']:.1f} times)"
            for name, peer in each["peers"].items()
        )
        spread = f"{each['p10_us']:.1f} to {each['p90_us']:.1f}"
        cells = [each["step"], each["size"], f"{each['median_us']:.1f}", spread, told, beside]
        expected.append(cells)
    assert [[cell.strip() for cell in row.split("|")] for row in rows] == expected


def test_the_goals_are_told_as_they_came_out() -> None:
    end = _median("accept_walk + commit_path", "")
    top = _median("depth_topk", "")
    by_depth, by_parent = (
        _median("build_tree", f"256 rows, K 16, D 15, scores by {kind}")
        for kind in ("depth", "parent")
    )
    peer = STEPS["depth_topk", "15 x 151936 bf16, K 16"]["peers"]["torch topk + logsumexp"]
    text = " ".join(PAGE.split())
    assert f"takes {end:.1f} of 10 us: met" in text and end <= 10
    assert f"take {top:.1f} us, not the 20 that were the goal" in text and top > 20
    assert f"take {peer['ratio']:.1f} times as long" in text
    assert f"takes {by_depth:.1f} us with scores by depth and {by_parent:.1f} us with" in text
    assert f"goal: {by_depth / 40:.1f} and {by_parent / 40:.1f} times too long" in text
    small = [
        _median("build_tree", f"64 rows, K 16, D 15, scores by {k}") for k in ("depth", "pare")
    ]
    assert f"Trees of 64 rows take {small[0]:.1f} us and {small[1]:.1f} us" in text
    goals = {e["step"]: e["goal_us"] for e in RECORDED["results"] if e["goal_us"] is not None}
    assert goals == {"accept_walk + commit_path": 10, "depth_topk": 20, "build_tree": 40}
    assert "**A tree of 256 rows** takes" in text and "where 40 were the goal" in text


def test_the_round_is_told_beside_its_steps() -> None:
    steps = [
        ("depth_topk", ""),
        ("build_tree", "256 rows, K 16, D 15, scores by depth"),
        ("pack_ancestors", ""),
        ("tree_slots", ""),
        ("pick_argmax", "256 x"),
        ("accept_walk + commit_path", ""),
    ]
    alone, whole = (
        sum(_median(*step) for step in steps),
        _median("a round's steps in one graph", ""),
    )
    text = " ".join(PAGE.split())
    assert f"one graph take {whole:.1f} us" in text and f"the {alone:.1f} us that the same" in text


def test_the_lists_of_checks() -> None:
    assert f"({CHECKED})" in PAGE
    found = json.loads((FOLDER / CHECKED).read_text(encoding="utf-8"))
    assert found["failed"] == 0 and found["failures"] == [] and found["done"] == found["tasks"]
    assert not found["interpreted"] and not found["small"]
    assert sum(each["checks"] for each in found["lists"]) == found["checks"]
    assert {each["backend"] for each in found["lists"]} == {"triton", "cuda"}
    for name in ("device", "torch", "triton"):
        assert found[name] == RECORDED[name]
    assert found["date"][:10] == RECORDED["date"][:10]
    lists = {each["list"] for each in found["lists"]}
    text = " ".join(PAGE.split())
    assert (
        f"{found['tasks']} tasks, {found['checks']:,} checks in {found['seconds']:.0f} sec" in text
    )
    assert f"{found['failed']} failed" in text and f"in {len(lists)} lists" in text
