"""The lists that a GPU is checked with: their parts here, and all of them small, interpreted."""

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from jetflow_kernels import tree_attention_reference
from jetflow_kernels.check import __main__ as program
from jetflow_kernels.check.attention_values import NODES, largest_error, prefixes_for
from jetflow_kernels.check.batches import MASKS, Shape, make_batch, pack, tree
from jetflow_kernels.check.tasks import Outcome, Task, run_all, summary


def held(device: str, *, checks: int) -> tuple[int, float]:
    return checks, 0.25


def broken(device: str) -> tuple[int, float]:
    raise RuntimeError("bits differ")


def a_task(run: object) -> Task:
    return Task(list="a list", backend="triton", dtype="float16", case="a case", run=run)


@pytest.mark.parametrize("packed", [False, True])
def test_the_dense_answer_is_the_references(packed: bool) -> None:
    shape = Shape(heads=(6, 2), dim=8, page=5, dtype=torch.float64, packed=packed, words=2)
    batch = make_batch((3, 0, 66, 1), (4, 9, 17, 0), shape, "cpu")
    lse = torch.empty(batch.arguments["q"].shape[:2])
    got = tree_attention_reference(**batch.arguments, lse=lse)
    want, want_lse = batch.answer()
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    torch.testing.assert_close(lse, want_lse.float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(batch.rounded()[:70], want[:70], rtol=0, atol=1e-12)
    assert batch.arguments["k_pool"].isnan().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_rounded_is_off_by_some_roundings(dtype: torch.dtype) -> None:
    batch = make_batch((3, 0, 66, 1), (4, 9, 300, 0), Shape(dtype=dtype), "cpu")
    want, _ = batch.answer()
    off = (batch.rounded().double() - want).abs()
    # Weights and result, each by half a step; values are at most 5.
    assert 0 < float(off.max()) < 5 * torch.finfo(dtype).eps
    assert not batch.rounded()[70:].any()


def test_pages_are_all_that_changes() -> None:
    shape = Shape(page=4)
    one = make_batch((3, 2), (9, 1), shape, "cpu", seed=5)
    other = make_batch((3, 2), (9, 1), Shape(page=7, pages_seed=3, packed=True), "cpu", seed=5)
    for a, b in zip(
        one.keys + one.values + one.seen, other.keys + other.values + other.seen, strict=True
    ):
        assert torch.equal(a, b)
    assert not torch.equal(one.arguments["page_table"], other.arguments["page_table"])


def test_words_hold_their_bits() -> None:
    seen = torch.zeros(1, 130, dtype=torch.bool)
    seen[0, [0, 31, 63, 64, 127, 129]] = True
    assert pack(seen, 3).tolist() == [[1 + (1 << 31) - (1 << 63), 1 - (1 << 63), 2]]


@pytest.mark.parametrize("mask", MASKS)
def test_trees_see_their_root_and_themselves(mask: str) -> None:
    seen = tree(20, mask, torch.Generator().manual_seed(0))
    assert seen[:, 0].all()
    assert seen.diagonal().all()
    # Who is seen is seen with all that it sees.
    assert torch.equal((seen.float() @ seen.float() > 0), seen)


def test_an_error_in_proportion_is_allowed_and_no_more() -> None:
    want = torch.tensor([[0.5, 4.0]], dtype=torch.float64)
    assert largest_error((want + torch.tensor([1e-3, 6e-3])).half(), want) < 8e-3
    for wrong in (want + 3e-3, want * torch.nan):
        with pytest.raises(RuntimeError, match="off by"):
            largest_error(wrong.half(), want)


def test_all_pairs_of_rows_and_prefixes_meet() -> None:
    for page in (16, 48, 64, 128, 256):
        prefixes = prefixes_for(page)
        # Both lists are gone through side by side, 32 places a case.
        tasks = program.all_tasks(["triton"], small=False)
        places = 32 * sum(task.list == "rows x prefixes" for task in tasks)
        met = {(NODES[i % len(NODES)], prefixes[i % len(prefixes)]) for i in range(places)}
        assert len(met) == len(NODES) * len(prefixes)


def test_failures_are_outcomes_and_are_counted() -> None:
    told: list[Outcome] = []
    tasks = [a_task(partial(held, checks=3)), a_task(broken), a_task(partial(held, checks=0))]
    run_all(tasks, "cpu", 1, told.append)
    assert [one.failed is None for one in told] == [True, False, False]
    found = summary(told)
    assert (found["checks"], found["failed"]) == (3, 2)
    (row,) = found["lists"]
    assert (row["failed"], row["largest_error"]) == (2, 0.25)
    assert "bits differ" in found["failures"][0]["failed"]


def test_a_failure_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(program, "all_tasks", lambda backends, small: [a_task(broken)])
    out = tmp_path / "check.json"
    with pytest.raises(SystemExit) as stopped:
        program.main(["--out", str(out), "--jobs", "1"])
    assert stopped.value.code == 1
    assert "RuntimeError: bits differ" in capsys.readouterr().out
    assert json.loads(out.read_text(encoding="utf-8"))["failed"] == 1


CAPTURED = {
    "graph replays", "products in one graph", "products that were chosen",
    "whole rounds in one graph",
}  # fmt: skip


@pytest.mark.parametrize("small", [False, True])
def test_what_captures_says_so(small: bool) -> None:
    tasks = program.all_tasks(["triton", "cuda", "flash"], small=small)
    # No interpreter runs the CUDA version.
    captured = CAPTURED if small else {*CAPTURED, "swift: graph replays"}
    assert {task.list for task in tasks if task.captures} == captured
    assert not captured & {task.list for task in tasks if not task.captures}


def test_eager_leaves_out_by_name_what_captures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    captured = replace(a_task(broken), list="a list of graphs", captures=True)
    monkeypatch.setattr(
        program, "all_tasks", lambda backends, small: [captured, a_task(partial(held, checks=2))]
    )
    out = tmp_path / "check.json"
    for eager, left_out, failed in ((["--eager"], ["a list of graphs"], 0), ([], [], 1)):
        with contextlib.suppress(SystemExit):
            program.main(["--out", str(out), "--jobs", "1", *eager])
        report = json.loads(out.read_text(encoding="utf-8"))
        assert (report["left_out"], report["failed"]) == (left_out, failed)
    capsys.readouterr()
    program.main(["--names", "--eager"])
    assert capsys.readouterr().out == "a list\n"
    with pytest.raises(SystemExit):
        program.main(["--names", "--eager", "--only", "graphs"])
    assert "no list that can be run has 'graphs' in its name" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_some_lists_small_in_the_interpreter(tmp_path: Path) -> None:
    out = tmp_path / "check.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "jetflow_kernels.check",
            "--small",
            # The interpreter needs many minutes for all of them.
            "--only",
            "accepted",
            "--jobs",
            "2",
            "--out",
            str(out),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    report = json.loads(out.read_text(encoding="utf-8"))
    full = {task.list for task in program.all_tasks(["triton"], small=False)}
    chosen = {name for name in full if "accepted" in name}
    assert {row["list"] for row in report["lists"]} == chosen
    assert 1 < len(chosen) < len(full)
    assert report["checks"] > 3 * len(chosen)
