"""Which sources the sm_90a kernel of attention is built from, and its builds."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jetflow_kernels import nvcc
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2.configurations import Configuration
from jetflow_kernels.nvcc import cache_folder

SOURCES = nvcc.Sources(
    main=Path(__file__).parent / "tree_attention.cu",
    folders=(Path(__file__).parent,),
    flags=(
        f"-DPLAN_SPLIT_WORK={plan.SPLIT_WORK}",
        f"-DPLAN_MAX_SPLITS={plan.MAX_SPLITS}",
        f"-DPLAN_MIN_CHUNK={plan.MIN_CHUNK}",
    ),
)


def missing(variant: Configuration | None = None) -> str | None:
    """What a build needs and is not here; None where there is a compiler or a finished build.

    Args:
        variant: None: any of them.
    """
    return nvcc.missing(SOURCES, None if variant is None else variant.name)


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
    defines: dict[str, str | int] = {
        "KERNEL_NAME": variant.name,
        "KERNEL_ELEMENT": variant.element,
        "KERNEL_DIM": variant.dim,
        "KERNEL_ROWS": variant.rows,
        "KERNEL_SWIFT": int(variant.swift),
    }
    return nvcc.build(folder, SOURCES, variant.name, tuple(defines.items()), macros)
