"""The command ``jetflow``: one line for a user's error, a traceback for a fault of the program.

Exit codes: what the command returns (0, or 1 for a verdict that is not good); 2 for a wrong
option, file or value; 130 after Ctrl-C; 141 when the reader of the output went away.
"""

from __future__ import annotations

import dis
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, UnknownCommandError, UnusedCliTokensError

from jetflow_core.commands.registry import build_app

USER_ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141

_LONGEST_LINE = 500


def main() -> None:
    """Runs the command line of this process and exits."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Runs one command line; returns its exit code.

    Raises:
        Exception: a fault of the program, with its traceback.
    """
    return run_app(build_app(), arguments)


def run_app(app: App, arguments: Sequence[str], *, name: str = "jetflow") -> int:
    """Runs one command line of any application of ours; returns its exit code.

    This is the one place that tells a user's error from a fault of the program, for the commands
    of every package.

    Args:
        app: made by ``jetflow_core.commands.registry.new_app``.
        arguments: without the program's name.
        name: how the line about an error begins.

    Raises:
        Exception: a fault of the program, with its traceback.
    """
    try:
        _check_text(arguments)
        code = app(list(arguments))
        sys.stdout.flush()
    except CycloptsError as error:
        return _complain(name, _usage_error(app, error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except OSError as error:
        return _complain(name, _file_error(error))
    except Exception as error:
        if not _is_users(error):
            raise
        return _complain(name, str(error))
    return code if isinstance(code, int) else 0


def _check_text(arguments: Sequence[str]) -> None:
    for number, argument in enumerate(arguments, start=1):
        if any("\ud800" <= character <= "\udfff" for character in argument):
            raise ValueError(f"argument {number} is no text: its bytes are not UTF-8")


def _complain(name: str, message: str) -> int:
    line = " ".join(message.split())
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE - 3]}..."
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    print(f"{name}: {line}", file=sys.stderr)
    return USER_ERROR


def _usage_error(app: App, error: CycloptsError) -> str:
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        # Its own text would import every command to look for similar names.
        names = ", ".join(name for name in error.app or app if not name.startswith("-"))
        return f"unknown command {error.unused_tokens[0]!r}; commands: {names}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        words = " ".join(error.unused_tokens)
        return f"no option takes {words!r}; words of a list are joined with commas, as in 1,16,64"
    error.verbose = False
    return str(error)


def _file_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    if error.filename is None:
        return f"cannot read or write: {reason}"
    return f"{str(error.filename)[:120]}: {reason}"


def _is_users(error: Exception) -> bool:
    """Whether the user can mend it: raised on purpose by one of our packages, or no memory left.

    A ValueError that a library raised, or Python itself, is a fault of the program.
    """
    if type(error).__name__ == "OutOfMemoryError" or _is_ours(type(error).__module__):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not isinstance(error, ValueError):
        return False
    ours = _is_ours(str(trace.tb_frame.f_globals.get("__name__")))
    # Builtins leave no frame: int("x") and a raise statement differ only in the instruction.
    instruction = trace.tb_frame.f_code.co_code[trace.tb_lasti]
    return ours and instruction == dis.opmap["RAISE_VARARGS"]


def _is_ours(module: str) -> bool:
    return module.startswith("jetflow_")


def _drop_output() -> None:
    # Otherwise the interpreter tries once more to flush, and complains.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
