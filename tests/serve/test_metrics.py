"""Metrics: boards that two processes share, the series of all that is counted, and increments."""

import dataclasses
import itertools
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_serve.counters import Counters
from jetflow_serve.metrics.board import Board, Series, board_file
from jetflow_serve.metrics.deltas import Deltas
from jetflow_serve.metrics.names import METRICS, ROUNDS
from jetflow_serve.metrics.posting import worker_series, worker_values
from jetflow_serve.reasons import REASONS, Asked, choose
from jetflow_tree import Accepted, Tree

SERIES = [Series("a"), Series("b", ("1",)), Series("b", ("é", "2"))]


def test_a_board_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "board"
    written = Board.create(file, SERIES)
    read = Board.open(file)
    assert read is not None
    assert read.series == tuple(SERIES)
    assert set(read.read().values()) == {0.0}
    # Whoever has it in memory goes on without the file.
    read.unlink()
    assert not file.exists()
    written.unlink()
    written.post({SERIES[0]: 2.5, SERIES[2]: 3})
    assert read.read() == {SERIES[0]: 2.5, SERIES[1]: 0.0, SERIES[2]: 3.0}


def test_a_process_that_ends_leaves_no_board(tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_posts, args=(tmp_path / "board",))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert list(tmp_path.iterdir()) == []


def _posts(file: Path) -> None:
    board = Board.create(file, SERIES)
    board.unlink_at_exit()
    board.post({SERIES[0]: 1})
    assert file.exists()


def test_boards_that_are_none(tmp_path: Path) -> None:
    assert Board.open(tmp_path / "none") is None
    (tmp_path / "empty").touch()
    assert Board.open(tmp_path / "empty") is None
    (tmp_path / "begun").write_bytes(bytes(64))
    assert Board.open(tmp_path / "begun") is None
    board = Board.create(tmp_path / "board", [])
    assert board.read() == {}
    (tmp_path / "link").symlink_to(tmp_path / "board")
    assert Board.open(tmp_path / "link") is None


def test_a_board_is_new_and_its_owners_alone(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "board", SERIES)
    assert board.file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        Board.create(board.file, SERIES)
    with pytest.raises(KeyError):
        board.post({Series("c"): 1})


def test_boards_of_engines_and_parts_are_apart() -> None:
    files = [board_file(*key) for key in itertools.product("xy", "pq", (0, 1))]
    assert len(set(files)) == 8
    assert os.access(files[0].parent, os.W_OK)


@given(st.lists(st.lists(st.integers(0, 5), min_size=3, max_size=3), max_size=8))
def test_increments_sum_to_the_newest_sums(steps: list[list[int]]) -> None:
    deltas, sums, told = Deltas(), [0, 0, 0], [0.0, 0.0, 0.0]
    for step in steps:
        sums = [a + b for a, b in zip(sums, step, strict=True)]
        grown = deltas.since(dict(zip(SERIES, sums, strict=True)))
        assert all(value > 0 for value in grown.values())
        told = [a + grown.get(each, 0.0) for a, each in zip(told, SERIES, strict=True)]
    assert told == sums


def test_every_series_belongs_to_a_metric_and_has_its_labels() -> None:
    metrics = {metric.name: metric for metric in METRICS}
    assert len(metrics) == len(METRICS)
    for series in worker_series(3, 9, ["pays"]):
        metric = metrics[series.metric]
        assert len(series.labels) == (1 if metric.kind == "histogram" else len(metric.labels))
        assert (metric.kind == "histogram") == bool(metric.buckets)


def test_whatever_is_counted_has_a_series(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "board", worker_series(3, 9, ["probe"]))
    counters = Counters()
    tree = Tree.from_parents([5, 1, 2, 3], [-1, 0, 0, 1])
    counters.verified(tree, Accepted((1, 3), (1, 3), 8), branching=True, moved=1)
    chain = Tree.from_parents([5, 1], [-1, 0])
    counters.verified(chain, Accepted((), (), 8), branching=False, moved=0)
    counters.decoded()
    counters.batch = (3, 6)
    counters.auto_steps["probe"] += 1
    for reason, shape in REASONS.items():
        counters.drafted(shape, reason)
    board.post(worker_values(counters))
    found = board.read()
    assert [found[Series(ROUNDS.name, (shape,))] for shape in ("tree", "chain", "plain")] == [1] * 3
    assert found[Series("jetflow:nodes")] == 4
    rows = {int(s.labels[0]): n for s, n in found.items() if s.metric == "jetflow:round_rows" if n}
    assert rows == {1: 1, 2: 1, 4: 1}
    depths = [found[Series("jetflow:accepted_by_depth", (str(depth),))] for depth in (1, 2, 3)]
    assert depths == [1, 1, 0]
    assert found[Series("jetflow:tree_depth", ("2",))] == 1
    assert found[Series("jetflow:budget")] == 2
    assert found[Series("jetflow:batch_rows")] == 6
    assert found[Series("jetflow:fallbacks", ("chain", "penalties"))] == 1
    assert found[Series("jetflow:auto_steps", ("probe",))] == 1


def test_every_reason_is_in_the_table() -> None:
    flags = [field.name for field in dataclasses.fields(Asked) if field.name != "budget"]
    found = set()
    for budget in (None, "off", 1, 8, 0, "many", True):
        for chosen in itertools.product((False, True), repeat=len(flags)):
            asked = Asked(budget=budget, **dict(zip(flags, chosen, strict=True)))
            choice = choose(asked)
            assert choice.reason is None or REASONS[choice.reason] is choice.shape
            found.add(choice.reason)
    assert found == {None, *REASONS}
