"""A plan with everything it needs at hand: data folders, settings of each run, what cannot run."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jetflow_train.ablation.options import (
    check_options,
    train_parser,
    train_settings,
    variant_options,
)
from jetflow_train.ablation.plan import Plan, PlanError, Variant
from jetflow_train.corpus_text import ORIGIN, TARGET
from jetflow_train.evaluation.policies import SECOND_PASS
from jetflow_train.files import sha256_file
from jetflow_train.heads import check_objective
from jetflow_train.settings import TrainSettings
from jetflow_train.shards import MANIFEST, DataMismatchError, read_manifest

DataFolders = Mapping[str, Path]
"""Folders by the names that the command line gives them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One training: a variant with one seed."""

    variant: Variant
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return run_name(self.variant.name, self.seed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """What is to be done."""

    plan: Plan
    settings: Mapping[str, TrainSettings]
    """Of the training of each variant that has its own and can run, by name; seed 0."""
    data: DataFolders
    """Every data folder in use, by the word that the plan has for it."""
    not_run: Mapping[str, str]
    """Variants that cannot run, and why."""

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those that can run."""
        return tuple(each for each in self.plan.variants if each.name not in self.not_run)

    def runs(self) -> tuple[Run, ...]:
        """Seed by seed through all variants: whatever is cut short holds whole comparisons."""
        return tuple(
            Run(variant=self.plan.variant(name), seed=seed)
            for seed in self.plan.seeds
            for name in self.settings
        )

    def sharing(self, name: str) -> tuple[Variant, ...]:
        """The variants that are measured with the heads of the training ``name``."""
        return tuple(each for each in self.variants if each.trained_as == name)


def run_name(variant: str, seed: int) -> str:
    """The folder of a run."""
    return f"{variant}-s{seed}"


def data_folders(words: Sequence[str]) -> dict[str, Path]:
    """``NAME=DIR`` words as a mapping.

    Raises:
        ValueError: a word of another form, or a name that comes twice.
    """
    found: dict[str, Path] = {}
    for word in words:
        name, sign, folder = word.partition("=")
        if not (name and sign and folder) or "/" in name:
            raise ValueError(f"data {word!r} is not of the form NAME=DIR")
        if name in found:
            raise ValueError(f"data {name!r} is given twice")
        found[name] = Path(folder)
    return found


def prepare(plan: Plan, given: DataFolders) -> Study:
    """Checks a plan as far as possible without its target.

    Args:
        plan: as read.
        given: data folders by name.

    Raises:
        PlanError: an option is refused, or two variants are the same; named.
        DataMismatchError: a data folder holds no data.
        ValueError: data is given that no variant uses, or nothing can run.
    """
    check_options(plan)
    settings: dict[str, TrainSettings] = {}
    entries: dict[str, tuple[str, ...]] = {}
    parser = train_parser()
    for each in plan.variants:
        if each.of is None:
            where = f"{plan.where}: variant {each.name!r}"
            options = variant_options(plan, each)
            entries[each.name] = tuple(options.get("data", ()))
            settings[each.name] = train_settings(parser, options, Path("run"), where)
            _check_loss(settings[each.name], each, where)
    _check_second_passes(plan, settings)
    _check_different(plan, settings, entries)
    data, missing = _data(entries, given)
    not_run = _not_run(plan, entries, missing)
    if len(not_run) == len(plan.variants):
        raise ValueError(f"nothing can run: {next(iter(not_run.values()))}")
    return Study(
        plan=plan,
        settings={
            name: replace(some, data=tuple(data[word] for word in entries[name]))
            for name, some in settings.items()
            if name not in not_run
        },
        data=data,
        not_run=not_run,
    )


def _check_loss(settings: TrainSettings, variant: Variant, where: str) -> None:
    try:
        check_objective(settings.loss, fresh=variant.start is None)
    except ValueError as error:
        raise PlanError(f'{where}: {error} (in a plan: start = "NAME")') from error


def _check_second_passes(plan: Plan, settings: Mapping[str, TrainSettings]) -> None:
    for each in plan.variants:
        head: Variant | None = plan.variant(each.trained_as)
        while head is not None and not settings[head.name].prefix_fill:
            head = plan.variant(head.start) if head.start else None
        if each.builder == SECOND_PASS and head is None:
            raise PlanError(
                f"{plan.where}: variant {each.name!r}: builder {SECOND_PASS} needs a head that is "
                f"trained with prefix-fill; that of {each.trained_as!r} is not"
            )


def _check_different(
    plan: Plan, settings: Mapping[str, TrainSettings], entries: Mapping[str, tuple[str, ...]]
) -> None:
    """Two variants that measure the same would double it and hide a slip of the pen."""
    known: dict[str, Hashable] = {}
    for name, some in settings.items():
        start = plan.variant(name).start
        known[name] = (
            entries[name],
            some.head_choice() if start is None else known[start],
            some.train_config(),
            some.horizon(),
            some.compile,
        )
    seen: dict[Hashable, str] = {}
    for each in plan.variants:
        key = (known[each.trained_as], each.builder)
        if key in seen:
            raise PlanError(f"{plan.where}: variant {each.name!r} is the same as {seen[key]!r}")
        seen[key] = each.name


def _data(
    entries: Mapping[str, tuple[str, ...]], given: DataFolders
) -> tuple[dict[str, Path], set[str]]:
    """Folders of the words that plans have for data, and the words without one."""
    words = list(dict.fromkeys(word for some in entries.values() for word in some))
    for name in given:
        if name not in words:
            raise ValueError(f"no variant uses data called {name!r}; called are {', '.join(words)}")
    found: dict[str, Path] = {}
    missing = set()
    for word in words:
        folder = given.get(word, Path(word))
        # A bare word is a name that somebody may not have given; a path is a mistake.
        if word not in given and "/" not in word and not folder.is_dir():
            missing.add(word)
            continue
        if read_manifest(folder) is None:
            raise DataMismatchError(f"{folder} holds no {MANIFEST}")
        found[word] = folder
    return found, missing


def _not_run(
    plan: Plan, entries: Mapping[str, tuple[str, ...]], missing: set[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    # What shares a training may stand before it, so trainings come first.
    for each in sorted(plan.variants, key=lambda each: each.of is not None):
        lacking = [word for word in entries.get(each.name, ()) if word in missing]
        if lacking:
            found[each.name] = f"no data called {lacking[0]}"
        elif each.trained_as in found:
            found[each.name] = f"{each.trained_as}: {found[each.trained_as]}"
        elif each.start in found:
            found[each.name] = f"it starts with {each.start}: {found[each.start]}"
    return found


def data_marks(data: DataFolders) -> dict[str, dict[str, Any]]:
    """Checksum and origin of each data folder."""
    return {
        word: {
            "manifest_sha256": sha256_file(folder / MANIFEST),
            "origin": (read_manifest(folder) or {}).get(ORIGIN, TARGET),
        }
        for word, folder in data.items()
    }
