"""Output files: tried before any work, whole or absent, and never in place of something else."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jetflow_core import cli
from jetflow_core.commands.bench_options import finish
from jetflow_core.reports.files import OutputError, check_output, write_json, write_output

Call = Callable[..., tuple[int, str, str]]

# Bad whatever the user is allowed to do; the message in the line.
PLACES = {
    "no folder": ("none/x.json", "does not exist"),
    "a file as folder": ("plain/x.json", "does not exist"),
    "a folder": ("folder", "it is a folder"),
    "a folder to be": ("newdir/", "a folder, or the name of one"),
    "empty": ("", "a folder, or the name of one"),
    "proc": ("/proc/x.json", "cannot write /proc/x.json"),
    "device": ("/dev/null", "it is no regular file"),
    "fifo": ("fifo", "it is no regular file"),
    "link to a device": ("to-null", "it is no regular file"),
    "link in a circle": ("circle", "cannot write"),
    "300 characters": ("a" * 300, "File name too long"),
}
COMMANDS = {
    "generate": ("generate", "hi", "--stats"),
    "bench tree": ("bench", "tree", "--out"),
    "bench lossless": ("bench", "lossless", "--device", "cpu", "--out"),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plain").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "to-null").symlink_to("/dev/null")
    (tmp_path / "circle").symlink_to("circle")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", PLACES)
def test_a_bad_place_is_refused_before_any_work(
    name: str, command: str, here: Path, jetflow: Call
) -> None:
    before = {entry.name: entry.lstat().st_mode for entry in here.iterdir()}
    place, expected = PLACES[name]
    code, out, err = jetflow(*COMMANDS[command], place)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert expected in err
    assert {entry.name: entry.lstat().st_mode for entry in here.iterdir()} == before
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    ("plot", "expected"),
    [("/proc/x.png", "cannot write /proc/x.png"), ("x.txt", "must end in"),
     ("same.png", "two outputs have one name"), ("./same.png", "two outputs have one name")],
)  # fmt: skip
def test_a_plot_needs_a_place_of_its_own(
    plot: str, expected: str, here: Path, jetflow: Call
) -> None:
    code, out, err = jetflow("bench", "decode", "--out", "same.png", "--plot", plot)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert expected in err


def test_a_link_stays_and_its_end_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to("real/new.json")
    assert write_json(link, {"tau": 2.0}) == tmp_path / "real" / "new.json"
    assert link.is_symlink()
    assert json.loads((tmp_path / "real" / "new.json").read_text()) == {"tau": 2.0}
    assert [entry.name for entry in (tmp_path / "real").iterdir()] == ["new.json"]


def test_a_name_as_long_as_a_file_system_takes_is_written(tmp_path: Path) -> None:
    name = "a" * 250 + ".json"
    assert check_output(tmp_path / name) == tmp_path / name
    write_json(tmp_path / name, {})
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_a_full_disk_is_one_line_and_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("old")

    def full(partial: Path) -> None:
        partial.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OutputError, match=r"cannot write .*x\.json: No space left on device"):
        write_output(file, full)
    assert file.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_a_finished_report_is_shown_even_if_it_cannot_be_written(tmp_path: Path) -> None:
    shown = []
    with pytest.raises(OutputError):
        finish(str(tmp_path), {}, lambda: shown.append("table"))
    assert shown == ["table"]


def test_an_output_that_is_full_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dropped = []

    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    def app(_arguments: list[str]) -> int:
        return 0

    monkeypatch.setattr(cli, "build_app", lambda: app)
    monkeypatch.setattr(cli, "_drop_output", lambda: dropped.append(True))
    monkeypatch.setattr(sys, "stdout", Full())
    assert cli.run([]) == 2
    assert capsys.readouterr().err == "jetflow: cannot read or write: No space left on device\n"
    assert dropped == [True]


def test_a_file_of_the_user_that_cannot_be_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(_arguments: list[str]) -> Any:
        return Path("no such file").read_text()

    monkeypatch.setattr(cli, "build_app", lambda: app)
    assert cli.run([]) == 2
    assert capsys.readouterr().err == "jetflow: no such file: No such file or directory\n"


def test_an_unfinished_run_of_another_shape_is_refused(here: Path, jetflow: Call) -> None:
    for settings, parts in (([], {}), ({}, []), ({}, {"a": 1}), ({}, "x")):
        (here / "o.json.partial").write_text(json.dumps({"settings": settings, "parts": parts}))
        code, out, err = jetflow("bench", "decode", "--device", "cpu", "--out", "o.json")
        assert (code, out, len(err.splitlines())) == (2, "", 1), err
        assert "is no unfinished run of this command" in err
