"""The front page, exit codes, and what happens when the program itself is at fault."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest
from jetflow_core import cli
from jetflow_core.commands.registry import GROUP, build_app, summary

Call = Callable[..., tuple[int, str, str]]
_HEAVY = {"torch", "transformers", "numpy", "tokenizers", "safetensors"}


def _python(code: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], [], ["generate", "--help"],
                                       ["tree", "--help"], ["doctor", "--help"]])  # fmt: skip
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = _python(
        "import sys; from jetflow_core.cli import run; "
        f"assert run({arguments}) == 0; print(sorted({_HEAVY} & set(sys.modules)))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_front_page_shows_commands_and_versions(jetflow: Call) -> None:
    code, out, err = jetflow("--help")
    assert (code, err) == (0, "")
    for word in ("generate", "tree", "doctor", "jetflow-core 0.1.0", "jetflow-tree 0.1.0"):
        assert word in out
    assert "Write text with a target and a draft head" in " ".join(out.split())


def test_version_lists_the_packages(jetflow: Call) -> None:
    code, out, _ = jetflow("--version")
    assert code == 0
    assert "jetflow-core 0.1.0" in out.splitlines()


def _entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_packages_share_a_group_by_names_with_a_dot(capsys: pytest.CaptureFixture[str]) -> None:
    broken = _entry("bench.broken", "no_such_package.module:command")
    app = build_app([broken, _entry("bench.tree", "jetflow_core.commands.tree:command")])
    app(["bench", "--help"])
    out = capsys.readouterr().out
    assert "Draw the draft trees" in out
    assert "broken" in out
    with pytest.raises(ImportError, match="no_such_package"):
        app(["bench", "broken"])


def test_a_summary_is_read_without_an_import() -> None:
    sys.modules.pop("jetflow_core.commands.doctor", None)
    assert summary("jetflow_core.commands.doctor:command").startswith("Check that a draft head")
    assert "jetflow_core.commands.doctor" not in sys.modules
    assert summary("no_such_package.module:command") == ""
    assert summary("jetflow_core.cli:no_such_function") == ""


def _raising(monkeypatch: pytest.MonkeyPatch, error: Callable[[], object]) -> None:
    def app(_arguments: list[str]) -> object:
        return error()

    monkeypatch.setattr(cli, "build_app", lambda: app)


def test_faults_of_the_program_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_a_library() -> object:
        return int("x")

    def other() -> object:
        raise KeyError("x")

    for fault in (by_a_library, other):
        _raising(monkeypatch, fault)
        with pytest.raises((ValueError, KeyError)):
            cli.run([])


@pytest.mark.parametrize(
    ("body", "is_users"),
    [
        ("raise ValueError('budget 0')", True),
        ("raise ValueError('a') from OSError('b')", True),
        ("return int('x')", False),
        ("return [].index(1)", False),
        ("raise KeyError('x')", False),
        ("raise OutOfMemoryError('no room')", True),
    ],
)
def test_a_users_error_is_one_that_our_code_raised_on_purpose(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    body: str,
    is_users: bool,
) -> None:
    class OutOfMemoryError(RuntimeError):
        """Named as torch names it."""

    place = {"__name__": "jetflow_core.somewhere", "OutOfMemoryError": OutOfMemoryError}
    exec(f"def work():\n    {body}", place)
    _raising(monkeypatch, place["work"])
    if is_users:
        assert cli.run([]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    else:
        with pytest.raises((ValueError, KeyError)):
            cli.run([])


def test_interrupts_and_closed_pipes_have_their_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> object:
        raise KeyboardInterrupt

    def closed() -> object:
        raise BrokenPipeError

    _raising(monkeypatch, interrupted)
    assert cli.run([]) == 130
    _raising(monkeypatch, closed)
    monkeypatch.setattr(cli, "_drop_output", lambda: None)
    assert cli.run([]) == 141
    assert capsys.readouterr() == ("", "")


def test_the_reader_of_a_pipe_may_leave() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "jetflow_core.cli", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=120)
    # rich, which draws the help, ends the process with 1 by itself.
    assert process.returncode in {1, 141}
    assert err == b""
