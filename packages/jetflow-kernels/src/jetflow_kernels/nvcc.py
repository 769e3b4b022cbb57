"""Compiles CUDA C++ with the machine's nvcc on first use and keeps the result.

Each kernel is a build of its own: the first call that needs it waits some seconds. Builds are kept
by the sha256 of everything that goes into them, so another version of the sources or of the
compiler makes a build of its own and nothing is ever stale.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_USUAL_PLACE = Path("/usr/local/cuda/bin/nvcc")
FLAGS = (
    "-std=c++17",
    "-gencode",
    "arch=compute_90a,code=sm_90a",
    "-cubin",
    "-O3",
    "-Xptxas",
    "-v",
)


class BuildError(RuntimeError):
    """The kernel could not be built here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What kernels are compiled from."""

    main: Path
    folders: tuple[Path, ...]
    """Of the main file and of what it includes."""
    flags: tuple[str, ...] = ()
    """Beside ``FLAGS``."""

    @property
    def command(self) -> tuple[str, ...]:
        """All flags."""
        return (*FLAGS, *self.flags)

    @property
    def key(self) -> str:
        """Another one for each change of the sources or the flags."""
        return _source_key(self)


@cache
def _source_key(sources: Sources) -> str:
    key = hashlib.sha256(" ".join(sources.command).encode())
    for folder in sources.folders:
        for file in sorted(folder.glob("*.cu*")):
            key.update(file.name.encode() + b"\0" + file.read_bytes())
    return key.hexdigest()[:16]


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


def missing(sources: Sources, name: str | None = None) -> str | None:
    """What a build needs and is not here; None where there is a compiler or a finished build.

    Args:
        sources: of the kernel.
        name: of the kernel; None: any of them.
    """
    folder = cache_folder()
    if find_nvcc() is not None or finished(folder, sources, name) is not None:
        return None
    return (
        f"nvcc (CUDA 12.3 or newer) is neither on the PATH nor at {_USUAL_PLACE}, and {folder} "
        "holds no build of these sources"
    )


def build(
    folder: Path,
    sources: Sources,
    name: str,
    defines: tuple[tuple[str, str | int], ...],
    macros: tuple[str, ...] = (),
) -> Path:
    """The file of machine code in ``folder``; beside it, ``.txt`` holds what ptxas reported.

    Args:
        folder: kept there.
        sources: what is compiled.
        name: the kernel's symbol, which stands for its ``defines``.
        defines: macros with values.
        macros: without; such builds have a folder of their own.

    Raises:
        BuildError: there is no compiler, or it failed; the message says what it said.
    """
    folder, nvcc = folder.joinpath(*macros), find_nvcc()
    if nvcc is None:
        kept = finished(folder, sources, name)
        if kept is None:
            raise BuildError(f"{name} cannot be built: {missing(sources, name)}")
        return kept
    version = _run([str(nvcc), "--version"])
    compiler = hashlib.sha256(version.encode()).hexdigest()[:8]
    made = folder / f"{name}-{sources.key}-{compiler}.cubin"
    if not made.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        named = [f"-D{macro}={value}" for macro, value in defines]
        _compile(nvcc, sources, made, [*named, *(f"-D{macro}" for macro in macros)])
    return made


def finished(folder: Path, sources: Sources, name: str | None) -> Path | None:
    """A build of these sources by whatever compiler.

    Args:
        folder: kept there.
        sources: of the kernel.
        name: of the kernel; None: any of them.
    """
    return next(iter(sorted(folder.glob(f"{name or '*'}-{sources.key}-*.cubin"))), None)


def _compile(nvcc: Path, sources: Sources, made: Path, flags: list[str]) -> None:
    included = [f"-I{folder}" for folder in sources.folders]
    with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
        new = Path(scratch) / made.name
        report = new.with_suffix(".txt")
        told = [*sources.command, *included, *flags, "-o", str(new), str(sources.main)]
        report.write_text(_run([str(nvcc), *told]), encoding="utf-8")
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
