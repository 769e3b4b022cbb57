"""From the options of a plan to the settings of a run, by the very parser of ``jetflow train``."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from cyclopts import App, CycloptsError
from jetflow_core.commands.numbers import OptionError
from jetflow_core.commands.registry import new_app

from jetflow_train.ablation.plan import Plan, PlanError, Variant, nearest
from jetflow_train.settings import HEAD_FIELDS, TrainSettings

LENGTHS = ("max-minutes", "max-steps")

# What the study itself decides, and by what.
_OF_THE_STUDY = {
    "out": "every run has its own folder below --out",
    "resume": "a study goes on by itself",
    "dry-run": "a study has none",
    "seed": "give the study's seeds",
    "target": "give --target",
    "start-head": 'give the variant start = "NAME"',
    "eval-prompts": "give them in [eval]",
    "eval-limit": "give the limit in [eval]",
    "eval-temperatures": "give the temperatures in [eval]",
    "eval-seconds": "heads are measured after their training",
    "shard": "a run of a study has one process",
}
_HEAD_OPTIONS = {name.replace("_", "-") for name in HEAD_FIELDS} | {"init"}


def variant_options(plan: Plan, variant: Variant) -> dict[str, Any]:
    """The options of a variant's training: those of the plan with its changes.

    A head that another variant trained fixes the options of the head, and one length takes the
    place of the other.
    """
    common = dict(plan.train)
    if variant.start is not None:
        common = {name: value for name, value in common.items() if name not in _HEAD_OPTIONS}
    if any(name in variant.changes for name in LENGTHS):
        common = {name: value for name, value in common.items() if name not in LENGTHS}
    return common | dict(variant.changes)


def check_options(plan: Plan) -> None:
    """Refuses options that are none, or that a study does not leave to its plan.

    Raises:
        PlanError: naming the option and where it stands.
    """
    places = [(f"{plan.where}: [train]", plan.train)]
    places += [(f"{plan.where}: variant {each.name!r}", each.changes) for each in plan.variants]
    kinds = option_kinds()
    for where, options in places:
        for name, value in options.items():
            _check_option(name, value, where, kinds)
    for each in plan.variants:
        fixed = sorted(_HEAD_OPTIONS.intersection(each.changes)) if each.start else []
        if fixed:
            raise PlanError(
                f"{plan.where}: variant {each.name!r}: {fixed[0]} is fixed by the head of "
                f"{each.start!r} that it starts with"
            )


def _check_option(
    name: str, value: Any, where: str, kinds: Mapping[str, tuple[type, bool]]
) -> None:
    if name in _OF_THE_STUDY:
        raise PlanError(f"{where}: {name} is no option of a plan: {_OF_THE_STUDY[name]}")
    if name not in kinds:
        raise PlanError(f"{where}: unknown option {name!r}{nearest(name, kinds)}")
    kind, many = kinds[name]
    if many != isinstance(value, list):
        raise PlanError(f"{where}: {name} must be {'a list' if many else 'no list'}, got {value!r}")
    for each in value if many else [value]:
        if not _is(each, kind):
            raise PlanError(f"{where}: {name} must be {_KINDS[kind]}, got {each!r}")


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


def _is(value: Any, kind: type) -> bool:
    # True is a whole number for Python, and a whole number is a number for everybody.
    return type(value) is kind or (kind is float and type(value) is int)


def option_kinds() -> dict[str, tuple[type, bool]]:
    """Each option of ``jetflow train``: the kind of its TOML value, and whether it is a list."""
    hints = get_type_hints(TrainSettings)
    return {each.name.replace("_", "-"): _kind(hints[each.name]) for each in fields(TrainSettings)}


def _kind(hint: Any) -> tuple[type, bool]:
    origin, inner = get_origin(hint), [each for each in get_args(hint) if each is not type(None)]
    if origin in (Union, types.UnionType):
        return _kind(inner[0])
    if origin is tuple:
        return _kind(inner[0])[0], True
    return (hint if hint in _KINDS else str), False


def train_settings(parser: App, options: Mapping[str, Any], out: Path, where: str) -> TrainSettings:
    """The settings that ``jetflow train`` would have with these options.

    Args:
        parser: from ``train_parser``.
        options: names and values as in ``run.toml``; lists as lists.
        out: run folder.
        where: what a message begins with.

    Raises:
        PlanError: an option is refused, in the words of the command.
    """
    words = [
        f"--{name}={str(each).lower() if isinstance(each, bool) else each}"
        for name, value in {"out": out, **options}.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    try:
        _, bound, _ = parser.parse_args(["train", *words])
        settings: TrainSettings = bound.arguments["settings"]
        settings.check()
        settings.train_config()
        settings.horizon()
        settings.head_choice()
    except CycloptsError as error:
        error.verbose = False
        raise PlanError(f"{where}: {error}") from error
    except (OptionError, ValueError) as error:
        raise PlanError(f"{where}: {error}") from error
    return settings


def train_parser() -> App:
    """An application with the command ``train`` alone."""
    # Only now: the commands import this package's commands too.
    from jetflow_train.cli import train

    app = new_app("plan", "")
    app.command(train)
    return app
