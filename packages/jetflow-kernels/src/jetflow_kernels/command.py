"""``jetflow bench kernels``: attention and the steps of a round, timed on this machine's GPU."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetflow_kernels.attention.backend import Backend


def bench(
    *,
    out: Path | None = None,
    rows: str = "1,16,64,128,256",
    prefixes: str = "1024,4096,16384",
    requests: str = "1",
    pages: str = "128",
    layers: int = 36,
    backends: str = "all",
) -> int:
    """Time the kernels on this machine's GPU, beside other kernels that are installed.

    Everything is checked against a reference first. CUDA graphs of all layers are replayed, pages
    are permuted, all take turns; median, spread, share of the floor and the ratio to each peer.

    Args:
        out: JSON file to write, anew after every result.
        rows: rows of each tree, the root included; 1 is plain decoding.
        prefixes: committed tokens before the trees.
        requests: requests of a batch.
        pages: rows of a page.
        layers: pools that take turns, so that keys come from memory.
        backends: versions of attention to time, between commas: triton, cuda, flash; all: those
            that can run here.

    Returns:
        1 if one of our kernels was wrong, else 0.

    Raises:
        ValueError: a number is out of range, a version is unknown or cannot run here, or there is
            no CUDA device.
    """
    import torch

    sizes = [
        numbers(name, text, most)
        for name, text, most in (
            ("requests", requests, 4096),
            ("prefixes", prefixes, 1_000_000),
            ("rows", rows, 256),
            ("pages", pages, 256),
        )
    ]
    if not 1 <= layers <= 1000:
        raise ValueError(f"layers {layers} is out of range: 1 to 1000")
    if out is not None and not out.absolute().parent.is_dir():
        raise ValueError(f"out {out} lies in no folder")
    if not torch.cuda.is_available():
        raise ValueError("the kernels are timed on a CUDA device; there is none here")
    return _run(list(product(*sizes)), layers, out, versions(backends))


def numbers(name: str, text: str, most: int) -> list[int]:
    """Whole numbers between commas.

    Raises:
        ValueError: one is none, or outside 1 to ``most``.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 1 <= int(part) <= most for part in parts):
        raise ValueError(f"{name} {text!r} is out of range: whole numbers, 1 to {most}")
    return [int(part) for part in parts]


def versions(wanted: str) -> list[Backend]:
    """The versions of attention that are timed.

    Args:
        wanted: names between commas, or ``all`` for those that can run here.

    Raises:
        ValueError: one is unknown, or cannot run here.
    """
    from jetflow_kernels.attention.bench import TIMED
    from jetflow_kernels.availability import backends

    found = {each.name: each for each in backends()}
    usable = [name for name in TIMED if name in found and found[name].usable]
    if wanted == "all":
        return usable
    names = [part.strip() for part in wanted.split(",")]
    for name in names:
        if name not in TIMED:
            raise ValueError(f"backends must be all or of {', '.join(TIMED)}, got {name!r}")
        if name not in usable:
            raise ValueError(f"backend {name} cannot run here: {found[name].detail}")
    return [name for name in TIMED if name in names]


def _run(grid: list[tuple[int, ...]], layers: int, out: Path | None, ours: list[Backend]) -> int:
    from jetflow_kernels import timing
    from jetflow_kernels.attention import bench as attention
    from jetflow_kernels.attention import peers
    from jetflow_kernels.round import bench as steps
    from jetflow_kernels.round.contests import Sizes

    report: dict[str, Any] = {
        "format": "jetflow-bench-kernels/1",
        **timing.environment(),
        "peers": peers.versions(),
        "attention": [],
        "steps": [],
    }

    def told(kind: str, line: str, result: dict[str, Any]) -> None:
        report[kind].append(result)
        print(line, flush=True)
        if out is not None:
            timing.write_json(out, report)

    for name, found in report["peers"].items():
        print(f"peer {name}: {found}")
    cases = [
        attention.Case(requests=batch, prefix=prefix, rows=count, page=page, layers=layers)
        for batch, prefix, count, page in grid
    ]
    entrants = attention.choose(ours, list(peers.PEERS))
    attention.measure(cases, entrants, lambda r: told("attention", attention.line(r), r))
    steps.run(Sizes(), lambda r: told("steps", steps.line(r), r))
    wrong = [r for r in report["attention"] if "failed" in r and r["backend"] in ours]
    wrong += [r for r in report["steps"] if "failed" in r]
    return 1 if wrong else 0
