"""A study as its TOML file describes it, with every key and value checked by name."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jetflow_train.evaluation.settings import EvalSettings

BUILDERS = ("exact", "all-children", "chain", "second-pass")
"""How trees are grown in an evaluation: best-first, the reference's way, not at all, and best-first
again from a second pass of the head over the first tree."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_KEYS = ("train", "seeds", "eval", "variants")
_EVAL_KEYS = ("prompts", "limit", "temperatures", "budgets", "max-new-tokens", "seed")
_VARIANT_KEYS = ("name", "changes", "start", "of", "builder", "against")


class PlanError(ValueError):
    """A plan is refused; the message names the file and what is wrong in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One thing that is changed."""

    name: str
    changes: Mapping[str, Any]
    """Options of ``jetflow train`` that differ, in its spelling without the dashes in front."""
    start: str | None = None
    """The variant whose trained head this one begins with, seed by seed."""
    of: str | None = None
    """The variant whose training this one shares; it differs in the evaluation alone."""
    builder: str = "exact"
    against: str | None = None
    """The variant that this one's ratios are to."""

    @property
    def trained_as(self) -> str:
        """The variant whose runs hold this one's heads."""
        return self.of or self.name

    def to_dict(self) -> dict[str, Any]:
        """What was written of it, ready for JSON."""
        told = {"start": self.start, "of": self.of, "against": self.against}
        given = {key: value for key, value in told.items() if value is not None}
        return {"name": self.name, "changes": dict(self.changes), "builder": self.builder, **given}


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalPlan:
    """How all heads are measured; ranges as in ``EvalSettings``."""

    prompts: tuple[Path, ...]
    limit: int = 128
    temperatures: tuple[float, ...] = (0.0, 0.7)
    budgets: tuple[int, ...] = (16, 32, 64, 128, 256)
    max_new_tokens: int = 128
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; files by their names."""
        return {
            "prompts": [file.name for file in self.prompts],
            "limit": self.limit,
            "temperatures": list(self.temperatures),
            "budgets": list(self.budgets),
            "max-new-tokens": self.max_new_tokens,
            "seed": self.seed,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole study."""

    where: str
    """The file, for messages."""
    train: Mapping[str, Any]
    seeds: tuple[int, ...]
    evaluation: EvalPlan
    variants: tuple[Variant, ...]

    def variant(self, name: str) -> Variant:
        """The variant of this name."""
        return next(each for each in self.variants if each.name == name)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "train": dict(self.train),
            "seeds": list(self.seeds),
            "eval": self.evaluation.to_dict(),
            "variants": [each.to_dict() for each in self.variants],
        }


def shipped_plans() -> tuple[str, ...]:
    """Names of the plans that are part of the package."""
    files = (resources.files(__package__) / "plans").iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


def read_plan(place: str, prompts: Sequence[Path] = ()) -> Plan:
    """The plan in a TOML file, or the shipped one of that name.

    Args:
        place: a file, or a name of ``shipped_plans``.
        prompts: evaluated on in place of the plan's own prompts, where given.

    Raises:
        PlanError: the file cannot be read, or something in it is refused; named.
    """
    return parse_plan(_text(place), place, prompts)


def _text(place: str) -> str:
    file = Path(place)
    if place in shipped_plans() and not file.exists():
        shipped = resources.files(__package__) / "plans" / f"{place}.toml"
        return shipped.read_text(encoding="utf-8")
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        names = ", ".join(shipped_plans())
        raise PlanError(
            f"cannot read the plan {place}: {error.strerror}; plans of the package: {names}"
        ) from error
    except UnicodeDecodeError as error:
        raise PlanError(f"cannot read the plan {place}: it is not UTF-8") from error


def parse_plan(text: str, where: str, prompts: Sequence[Path] = ()) -> Plan:
    """The plan that ``text`` describes; see ``read_plan``."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{where} is no TOML: {error}") from error
    _only(raw, _KEYS, where)
    train = _options(raw.get("train", {}), f"{where}: [train]")
    variants = [
        _variant(each, number, where)
        for number, each in enumerate(_list(raw.get("variants", []), f"{where}: variants"), 1)
    ]
    if not variants:
        raise PlanError(f"{where}: no [[variants]]")
    _check_names(variants, where)
    return Plan(
        where=where,
        train=train,
        seeds=_seeds(raw.get("seeds", [0]), where),
        evaluation=_evaluation(raw.get("eval", {}), prompts, f"{where}: [eval]"),
        variants=tuple(variants),
    )


def _variant(raw: Any, number: int, where: str) -> Variant:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("name"), str):
        raise PlanError(f"{where}: variant {number} needs a name")
    name = raw["name"]
    place = f"{where}: variant {name!r}"
    if _NAME.fullmatch(name) is None:
        raise PlanError(f"{place}: a name is of a-z, 0-9, dots and dashes, at most 64 of them")
    _only(raw, _VARIANT_KEYS, place)
    for key in ("start", "of", "builder", "against"):
        if key in raw and not isinstance(raw[key], str):
            raise PlanError(f"{place}: {key} must be a text, got {raw[key]!r}")
    changes = _options(raw.get("changes", {}), f"{place}: changes")
    builder = raw.get("builder", BUILDERS[0])
    if builder not in BUILDERS:
        raise PlanError(f"{place}: builder {builder!r} is none of {', '.join(BUILDERS)}")
    if "of" in raw and (changes or "start" in raw):
        raise PlanError(f"{place}: it shares the training of {raw['of']!r} and can change nothing")
    return Variant(
        name=name,
        changes=changes,
        start=raw.get("start"),
        of=raw.get("of"),
        builder=builder,
        against=raw.get("against"),
    )


def _check_names(variants: Sequence[Variant], where: str) -> None:
    names = [each.name for each in variants]
    trained = {each.name for each in variants if each.of is None}
    for place, each in enumerate(variants):
        if names.count(each.name) > 1:
            raise PlanError(f"{where}: two variants are called {each.name!r}")
        who = f"{where}: variant {each.name!r}"
        if each.against is not None and each.against not in names:
            raise PlanError(f"{who}: against {each.against!r}, which is no variant")
        if each.against == each.name:
            raise PlanError(f"{who}: against itself")
        if each.of is not None and each.of not in trained:
            raise PlanError(f"{who}: of {each.of!r}, which is no variant with a training")
        # Runs go through the variants in order, so the head must be there by then.
        if each.start is not None and each.start not in trained.intersection(names[:place]):
            raise PlanError(
                f"{who}: start {each.start!r}, which is no variant with a training before it"
            )


def _seeds(raw: Any, where: str) -> tuple[int, ...]:
    seeds = _list(raw, f"{where}: seeds")
    for seed in seeds:
        if type(seed) is not int or seed < 0:
            raise PlanError(f"{where}: seed {seed!r} is no whole number from 0 on")
        if seeds.count(seed) > 1:
            raise PlanError(f"{where}: seed {seed} comes twice")
    if not seeds:
        raise PlanError(f"{where}: no seeds")
    return tuple(seeds)


def _evaluation(raw: Any, prompts: Sequence[Path], where: str) -> EvalPlan:
    if not isinstance(raw, Mapping):
        raise PlanError(f"{where}: no table")
    _only(raw, _EVAL_KEYS, where)
    given: dict[str, Any] = {}
    for key, kinds, name in (
        ("prompts", (str,), "texts"),
        ("temperatures", (int, float), "numbers"),
        ("budgets", (int,), "whole numbers"),
    ):
        if key in raw:
            values = _list(raw[key], f"{where}: {key}")
            if any(type(value) not in kinds for value in values):
                raise PlanError(f"{where}: {key} must be {name}, got {values}")
            given[key] = tuple(values)
    for key in ("limit", "max-new-tokens", "seed"):
        if key in raw:
            if type(raw[key]) is not int:
                raise PlanError(f"{where}: {key} must be a whole number, got {raw[key]!r}")
            given[key.replace("-", "_")] = raw[key]
    files = tuple(prompts) or tuple(map(Path, given.get("prompts", ())))
    if not files:
        raise PlanError(f"{where}: no prompts; give them here or with --prompts")
    found = EvalPlan(**{**given, "prompts": files})
    try:
        EvalSettings(
            heads=(Path("head"),),
            prompts=found.prompts,
            limit=found.limit,
            seed=found.seed,
            temperatures=found.temperatures,
            budgets=found.budgets,
            max_new_tokens=found.max_new_tokens,
        )
    except ValueError as error:
        raise PlanError(f"{where}: {error}") from error
    return found


def _options(raw: Any, where: str) -> dict[str, Any]:
    """Options of a training with the names that ``run.toml`` has for them."""
    if not isinstance(raw, Mapping):
        raise PlanError(f"{where}: no table")
    found: dict[str, Any] = {}
    for key, value in raw.items():
        name = key.replace("_", "-")
        if name in found:
            raise PlanError(f"{where}: {key} comes twice")
        found[name] = value
    return found


def _list(raw: Any, where: str) -> list[Any]:
    if not isinstance(raw, list):
        raise PlanError(f"{where} must be a list, got {raw!r}")
    return raw


def _only(raw: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in raw:
        if key not in known:
            raise PlanError(f"{where}: unknown key {key!r}{nearest(key, known)}")


def nearest(key: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown key: which one may have been meant."""
    near = difflib.get_close_matches(key, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
