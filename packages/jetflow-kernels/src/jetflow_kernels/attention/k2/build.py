"""Compiles the sm_90a kernel with the machine's nvcc on first use and keeps the result.

Each variant is a build of its own: the first call that needs it waits some seconds. Builds are kept
by the sha256 of everything that goes into them, so another version of the sources or of the
compiler makes a build of its own and nothing is ever stale.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2.configurations import Configuration

SOURCE = "tree_attention.cu"
_SOURCES = Path(__file__).parent
_USUAL_PLACE = Path("/usr/local/cuda/bin/nvcc")
FLAGS = (
    "-std=c++17",
    "-gencode",
    "arch=compute_90a,code=sm_90a",
    "-cubin",
    "-O3",
    "-Xptxas",
    "-v",
    f"-DPLAN_SPLIT_WORK={plan.SPLIT_WORK}",
    f"-DPLAN_MAX_SPLITS={plan.MAX_SPLITS}",
    f"-DPLAN_MIN_CHUNK={plan.MIN_CHUNK}",
)


class BuildError(RuntimeError):
    """The kernel could not be built here."""


def cache_folder() -> Path:
    """``$XDG_CACHE_HOME/jetflow/kernels``, or the same under ``~/.cache``."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".cache"
    return base / "jetflow" / "kernels"


def find_nvcc() -> Path | None:
    """The compiler on the PATH, or the one where CUDA is usually installed."""
    found = shutil.which("nvcc")
    if found is not None:
        return Path(found)
    return _USUAL_PLACE if _USUAL_PLACE.is_file() else None


def missing(variant: Configuration | None = None) -> str | None:
    """What a build needs and is not here; None where there is a compiler or a finished build.

    Args:
        variant: None: any of them.
    """
    folder = cache_folder()
    if find_nvcc() is not None or _finished(folder, variant) is not None:
        return None
    return (
        f"nvcc (CUDA 12.3 or newer) is neither on the PATH nor at {_USUAL_PLACE}, and {folder} "
        "holds no build of these sources"
    )


@cache
def cubin(variant: Configuration) -> bytes:
    """The machine code of a variant, compiled now where no build is kept.

    Raises:
        BuildError: there is no compiler, or it failed; the message says what it said.
    """
    return build(cache_folder(), variant).read_bytes()


def build(folder: Path, variant: Configuration, macros: tuple[str, ...] = ()) -> Path:
    """The file of machine code in ``folder``; beside it, ``.txt`` holds what ptxas reported.

    Args:
        folder: kept there.
        variant: which kernel.
        macros: defined for the compiler; such builds have a folder of their own. ``KERNEL_CLOCK``
            makes one that notes when each program reaches its phases: see ``clock.cuh``.

    Raises:
        BuildError: there is no compiler, or it failed; the message says what it said.
    """
    folder, nvcc = folder.joinpath(*macros), find_nvcc()
    if nvcc is None:
        finished = _finished(folder, variant)
        if finished is None:
            raise BuildError(f"{variant.name} cannot be built: {missing(variant)}")
        return finished
    version = _run([str(nvcc), "--version"])
    compiler = hashlib.sha256(version.encode()).hexdigest()[:8]
    made = folder / f"{variant.name}-{_source_key()}-{compiler}.cubin"
    if not made.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(nvcc, variant, made, macros)
    return made


def _compile(nvcc: Path, variant: Configuration, made: Path, macros: tuple[str, ...]) -> None:
    defines = {
        "KERNEL_NAME": variant.name,
        "KERNEL_ELEMENT": variant.element,
        "KERNEL_DIM": variant.dim,
        "KERNEL_ROWS": variant.rows,
    }
    named = [f"-D{name}={value}" for name, value in defines.items()]
    flags = [*FLAGS, *named, *(f"-D{name}" for name in macros)]
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        new = Path(scratch) / made.name
        report = new.with_suffix(".txt")
        text = _run([str(nvcc), *flags, "-o", str(new), str(_SOURCES / SOURCE)])
        report.write_text(text, encoding="utf-8")
        # The code last: where it is, its report is too.
        os.replace(report, made.with_suffix(".txt"))
        os.replace(new, made)


def _run(command: list[str]) -> str:
    """What a command prints."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} could not be started: {error}") from error
    told = done.stdout + done.stderr
    if done.returncode:
        raise BuildError(
            f"{' '.join(command)} failed with status {done.returncode}: {told[-4000:]}"
        )
    return told


def _finished(folder: Path, variant: Configuration | None) -> Path | None:
    """A build of these sources by whatever compiler."""
    name = "*" if variant is None else variant.name
    return next(iter(sorted(folder.glob(f"{name}-{_source_key()}-*.cubin"))), None)


@cache
def _source_key() -> str:
    key = hashlib.sha256(" ".join(FLAGS).encode())
    for file in sorted(_SOURCES.glob("*.cu*")):
        key.update(file.name.encode() + b"\0" + file.read_bytes())
    return key.hexdigest()[:16]
