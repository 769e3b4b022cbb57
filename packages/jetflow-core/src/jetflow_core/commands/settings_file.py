"""Options of a command from a TOML file: the keys are the options' names, the command line wins.

A command takes part by having an option ``--config``. Its file is read before the options are
converted, so that ranges and choices are checked, and refused, as on the command line; what only a
file can get wrong (a key that is no option, a value of another kind) is refused here.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

from cyclopts import App, ArgumentCollection, Token
from cyclopts.argument import Argument

from jetflow_core.commands.numbers import OptionError

CONFIG = "config"

_KINDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
}


class OneOf:
    """Validator of a group of options of which exactly one must be given.

    One that stands on the command line takes the place of another one in the file.
    """

    def __init__(self, what: str) -> None:
        self.what = what

    def __call__(self, arguments: ArgumentCollection) -> None:
        """Refuses none, and more than one.

        Raises:
            OptionError: naming all of them.
        """
        if sum(argument.has_tokens for argument in arguments) != 1:
            names = " or ".join(argument.names[0] for argument in arguments)
            raise OptionError(f"{self.what}: give {names}, one of them")


def read_settings(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Fills options that the command line leaves out, as cyclopts asks of a source of settings.

    Raises:
        OptionError: the file cannot be read, or a key or value in it is refused; named.
    """
    options = {_key(name): argument for argument in arguments for name in argument.names}
    chosen = options.pop(CONFIG, None)
    if chosen is None or not chosen.has_tokens:
        return
    file = Path(chosen.tokens[0].value)
    taken = _replaced(arguments)
    seen: dict[str, str] = {}
    for written, value in _load(file).items():
        key = _key(written)
        if key not in options:
            raise OptionError(f"{file}: unknown key {written!r}{_nearest(key, options)}")
        if key in seen:
            raise OptionError(f"{file}: {seen[key]} and {written} are the same option")
        seen[key] = written
        argument = options[key]
        tokens = _tokens(argument.hint, written, value, file)
        if not argument.has_tokens and key not in taken:
            for token in tokens:
                argument.append(token)


def _load(file: Path) -> Mapping[str, Any]:
    import tomllib

    try:
        with file.open("rb") as handle:
            return tomllib.load(handle)
    except OSError as error:
        raise OptionError(f"cannot read the settings of {file}: {error.strerror}") from error
    # Also bytes that are no UTF-8.
    except ValueError as error:
        raise OptionError(f"{file} is no TOML: {error}") from error


def _key(name: str) -> str:
    return name.removeprefix("--").replace("_", "-")


def _replaced(arguments: ArgumentCollection) -> set[str]:
    """Keys of options that another one on the command line excludes."""
    found: set[str] = set()
    for group in arguments.groups:
        # cyclopts keeps one or more as a tuple, whatever was given.
        if any(isinstance(each, OneOf) for each in cast("tuple[Any, ...]", group.validator)):
            members = arguments.filter_by(group=group)
            if any(member.has_tokens for member in members):
                found |= {_key(name) for member in members for name in member.names}
    return found


def _nearest(key: str, options: Mapping[str, Argument]) -> str:
    near = difflib.get_close_matches(key, [name for name in options if name != "*"], n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _tokens(hint: Any, name: str, value: Any, file: Path) -> list[Token]:
    """``value`` as words of a command line.

    Raises:
        OptionError: it is not of the option's kind.
    """
    kind, many = _kind(hint)
    if many != isinstance(value, list):
        wanted = f"a list, each {_KINDS[kind]}" if many else _KINDS[kind]
        raise OptionError(f"{file}: {name} must be {wanted}, got {_shown(value)}")
    values = value if many else [value]
    for each in values:
        # A whole number is a number too, but true is none.
        if type(each) is not kind and not (kind is float and type(each) is int):
            raise OptionError(f"{file}: {name} must be {_KINDS[kind]}, got {_shown(each)}")
    words = [str(each).lower() if kind is bool else str(each) for each in values]
    keyword = f"{file.name}: {name}"
    return [Token(keyword=keyword, value=word, index=i) for i, word in enumerate(words)]


def _kind(hint: Any) -> tuple[type, bool]:
    """The kind of TOML value that an option of type ``hint`` takes, and whether it is a list."""
    origin, inner = get_origin(hint), [each for each in get_args(hint) if each is not type(None)]
    if origin in (Union, types.UnionType):
        return _kind(inner[0])
    if origin in (list, tuple, Sequence):
        return _kind(inner[0])[0], True
    if origin is Literal:
        return type(inner[0]), False
    return (hint if hint in _KINDS else str), False


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
