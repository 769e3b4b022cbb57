"""Options that the benchmarks share: read from text, and refused before any work."""

from __future__ import annotations

DTYPES = ("float32", "bfloat16", "float16", "float64")


def parse_budgets(text: str, most: int) -> tuple[int, ...]:
    """Budgets of a list like "1,16,64", ascending.

    Raises:
        ValueError: an entry is no whole number of 1 to ``most``, or comes twice.
    """
    found = []
    for part in text.split(","):
        word = part.strip()
        if not word.isdecimal() or not 1 <= int(word) <= most:
            raise ValueError(f"budget {word!r} is out of range: whole numbers, 1 to {most}")
        if int(word) in found:
            raise ValueError(f"budget {word} comes twice in {text!r}")
        found.append(int(word))
    return tuple(sorted(found))


def parse_choices(text: str, allowed: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Words of a list like "head,oracle", in the order of ``allowed``.

    Raises:
        ValueError: a word that is not allowed.
    """
    words = {part.strip() for part in text.split(",")}
    for word in sorted(words):
        if word not in allowed:
            raise ValueError(f"{what} {word!r} is unknown: choose from {', '.join(allowed)}")
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


def check_device(name: str) -> None:
    """Refuses a device that is not here.

    Raises:
        ValueError: no such device.
    """
    # Here and not above: the benchmark of the builders runs without torch.
    import torch

    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise ValueError(f"device {name!r} is unknown: cpu, cuda or cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} is not here: torch finds no CUDA device")
