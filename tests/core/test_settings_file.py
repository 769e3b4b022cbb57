"""Options of a command from a TOML file: refused by name, and the command line wins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from cyclopts import Group, Parameter
from jetflow_core.cli import run_app
from jetflow_core.commands.numbers import whole
from jetflow_core.commands.registry import new_app
from jetflow_core.commands.settings_file import OneOf

_LENGTH = Group("Length", validator=OneOf("the length"))


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    data: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)]
    out: Path = Path("o")
    minutes: Annotated[float | None, Parameter(group=_LENGTH)] = None
    max_steps: Annotated[int | None, whole(1), Parameter(group=_LENGTH)] = None
    loss: Literal["kl", "ce"] = "kl"
    causal: bool = True
    taps: Annotated[tuple[int, ...] | None, whole(0), Parameter(consume_multiple=True)] = None


Call = Callable[..., "Options | str"]


@pytest.fixture
def call(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command with a file of settings and options; its options, or the line of error."""
    seen: list[Options] = []

    def command(*, options: Options, config: Path | None = None) -> None:
        seen.append(options)

    app = new_app("x", "y")
    app.command(command)

    def go(text: str | bytes | None, *words: str) -> Options | str:
        file = tmp_path / "run.toml"
        if text is not None:
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        seen.clear()
        capsys.readouterr()
        code = run_app(app, ["command", "--config", str(file), *words], name="x")
        err = capsys.readouterr().err
        if code == 0:
            return seen[0]
        assert (code, len(err.splitlines())) == (2, 1)
        return err.removeprefix("x: ").strip().replace(f"{tmp_path}/", "")

    return go


FULL = """
data = ["a", "b"]
out = "run"
minutes = 3
loss = "ce"
causal = false
taps = [0, 2]
"""


def test_every_kind_of_value_arrives(call: Call) -> None:
    assert call(FULL) == Options(
        data=(Path("a"), Path("b")),
        out=Path("run"),
        minutes=3.0,
        loss="ce",
        causal=False,
        taps=(0, 2),
    )


def test_the_command_line_wins(call: Call) -> None:
    words = ("--data", "c", "--out", "other", "--max-steps", "7", "--causal", "--taps", "5")
    assert call(FULL, *words) == Options(
        data=(Path("c"),), out=Path("other"), max_steps=7, loss="ce", causal=True, taps=(5,)
    )


def test_names_may_be_written_as_in_python(call: Call) -> None:
    found = call('data = ["a"]\nmax_steps = 4\n')
    assert found == Options(data=(Path("a"),), max_steps=4)
    assert call('data = ["a"]\nmax-steps = 4\n') == found
    assert call('data = ["a"]\n"max-steps" = 4\nmax_steps = 4') == (
        "run.toml: max-steps and max_steps are the same option"
    )


BAD = {
    "max_stepps = 1": "run.toml: unknown key 'max_stepps'; did you mean 'max-steps'?",
    "qqq = 1": "run.toml: unknown key 'qqq'",
    'config = "a"': "run.toml: unknown key 'config'",
    "[model]\nx = 1": "run.toml: unknown key 'model'",
    'max-steps = "4"': "run.toml: max-steps must be a whole number, got '4'",
    "max-steps = 4.0": "run.toml: max-steps must be a whole number, got 4.0",
    "max-steps = true": "run.toml: max-steps must be a whole number, got true",
    "max-steps = 0": "run.toml: max-steps 0 is out of range: at least 1",
    'minutes = "long"': "run.toml: minutes must be a number, got 'long'",
    "minutes = 2020-01-01": "run.toml: minutes must be a number, got datetime.date(2020, 1, 1)",
    "causal = 1": "run.toml: causal must be true or false, got 1",
    "out = 3": "run.toml: out must be text in quotes, got 3",
    "out = ['a']": "run.toml: out must be text in quotes, got ['a']",
    "loss = 'mse'": "loss. Choose from",
    "taps = 3": "run.toml: taps must be a list, each a whole number, got 3",
    "taps = [0, 'a']": "run.toml: taps must be a whole number, got 'a'",
    "taps = [-1]": "run.toml: taps -1 is out of range",
    "data = [[]]": "run.toml: data must be text in quotes, got []",
    "minutes = 1\nmax-steps = 1": "the length: give --minutes or --max-steps, one of them",
    "": "the length: give --minutes or --max-steps, one of them",
    "minutes = ": "run.toml is no TOML: ",
}


@pytest.mark.parametrize("text", BAD)
def test_one_line_names_what_is_wrong(text: str, call: Call) -> None:
    found = call(text, *([] if "data" in text else ["--data", "d"]))
    assert isinstance(found, str)
    assert BAD[text] in found


def test_a_required_option_may_come_from_either(call: Call) -> None:
    assert "--data" in str(call("minutes = 1"))
    assert isinstance(call("minutes = 1", "--data", "d"), Options)


def test_a_file_that_cannot_be_read(call: Call) -> None:
    assert call(None) == "cannot read the settings of run.toml: No such file or directory"
    assert str(call(b"\xff\xfe")).startswith("run.toml is no TOML: ")
