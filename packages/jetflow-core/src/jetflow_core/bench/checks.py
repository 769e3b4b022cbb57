"""Options that the benchmarks share: read from text, and refused before any work."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from jetflow_core.commands.numbers import OptionError, parse_whole
from jetflow_core.devices import check_device
from jetflow_core.limits import ROUND_HEAD_DIMS, ROUND_PAGES, ROUND_SLOTS
from jetflow_core.reports.files import check_output

__all__ = [
    "DTYPES",
    "check_apart",
    "check_at_least",
    "check_device",
    "check_dtype",
    "check_plot",
    "check_round",
    "parse_budgets",
    "parse_choices",
]

DTYPES = ("float32", "bfloat16", "float16", "float64")


def parse_budgets(text: str, most: int) -> tuple[int, ...]:
    """Budgets of a list like "1,16,64", ascending.

    Raises:
        ValueError: an entry is no whole number of 1 to ``most``, or comes twice.
    """
    found = []
    for part in text.split(","):
        word = part.strip()
        try:
            budget = parse_whole(word, "budget", 1, most)
        except OptionError:
            shown = word if len(word) <= 40 else f"{word[:37]}..."
            raise ValueError(
                f"budget {shown!r} is out of range: whole numbers, 1 to {most}, with commas between"
            ) from None
        if budget in found:
            raise ValueError(f"budget {budget} comes twice")
        found.append(budget)
    return tuple(sorted(found))


def parse_choices(text: str, allowed: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Words of a list like "head,oracle", in the order of ``allowed``.

    Raises:
        ValueError: a word that is not allowed.
    """
    words = {part.strip() for part in text.split(",")}
    for word in sorted(words):
        if word not in allowed:
            raise ValueError(
                f"{what} {word!r} is unknown: choose from {','.join(allowed)}, with commas between"
            )
    return tuple(word for word in allowed if word in words)


def check_at_least(name: str, value: int | None, least: int) -> None:
    """Refuses a value below ``least``; None passes.

    Raises:
        ValueError: it is below.
    """
    if value is not None and value < least:
        raise ValueError(f"{name} {value} is out of range: at least {least}")


def check_dtype(name: str | None) -> None:
    """Refuses a number type that a target does not run in; None passes.

    Raises:
        ValueError: the name is none of ``DTYPES``.
    """
    if name is not None and name not in DTYPES:
        raise ValueError(f"dtype {name!r} is unknown: choose from {', '.join(DTYPES)}")


def check_round(
    device: str,
    *,
    page: int,
    batch: int,
    dtype: str | None = None,
    head_dims: Mapping[str, int] | None = None,
) -> None:
    """Refuses what the installed steps of a round do not take on a device; torch's take all.

    Args:
        device: cpu, cuda or cuda:N.
        page: rows of a page.
        batch: requests held at once.
        dtype: of the weights; None: one that runs.
        head_dims: by whose they are; None: not known yet.

    Raises:
        ValueError: naming the value, the steps and what they take.
    """
    # Here and not above: what only checks options runs without torch.
    import torch

    from jetflow_core.rounds import round_ops_for
    from jetflow_core.rounds.find import TORCH

    steps = round_ops_for(torch.device(device)).name
    if steps == TORCH:
        return
    takes = f"for the round's steps {steps} on {device}"
    for name, value, least, most in (
        ("page", page, *ROUND_PAGES),
        ("batch", batch, 1, ROUND_SLOTS),
    ):
        if not least <= value <= most:
            raise ValueError(f"{name} {value} is out of range {takes}: {least} to {most}")
    if dtype == "float64":
        raise ValueError(f"dtype {dtype} is too wide {takes}: float32, bfloat16 or float16")
    for whose, dim in (head_dims or {}).items():
        if dim not in ROUND_HEAD_DIMS:
            allowed = ", ".join(map(str, ROUND_HEAD_DIMS))
            raise ValueError(f"the {whose} has head dim {dim}, {takes} it is one of {allowed}")


def check_apart(*paths: str | Path | None) -> None:
    """Refuses two output files that are one; None passes.

    Raises:
        ValueError: naming the file.
    """
    places = [os.path.realpath(path) for path in paths if path is not None]
    for place in places:
        if places.count(place) > 1:
            raise ValueError(f"two outputs have one name, {Path(place).name}: give each its own")


def check_plot(path: str | Path) -> Path:
    """The picture's path, checked before the work that fills it.

    Raises:
        ValueError: matplotlib is not installed, or the path cannot be written or has no ending
            that names a kind of picture.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "plots need matplotlib, which is not installed: install jetflow-core[plot]"
        )
    if Path(path).suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"cannot plot into {path}: its name must end in .png, .svg or .pdf")
    return check_output(path)
