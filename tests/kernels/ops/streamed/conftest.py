"""The product kernel's own sources, compiled for the CPU over stand-ins for its instructions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_kernels.ops.streamed.launch import (
    Boxes,
    matrix_boxes,
    params_of,
    rows_boxes,
)
from jetflow_kernels.ops.streamed.variants import (
    SOURCES,
    TYPES,
    VARIANTS,
    Streamed,
    Variant,
    programs_for,
    variant_of,
)
from torch import Tensor

HERE = Path(__file__).parent
STAND_INS = (HERE.parents[1] / "k2" / "emulation", HERE / "emulation")


class Broken(AssertionError):
    """The kernel did what the card would not forgive."""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ctypes.CDLL]:
    """Compiles ``emulator.cpp`` with some kernels, and with changes to the sources."""

    def compiled(
        variants: Sequence[Variant], changes: Sequence[tuple[str, str, str]] = ()
    ) -> ctypes.CDLL:
        folder = tmp_path_factory.mktemp("emulator")
        for place in (*reversed(SOURCES.folders), *STAND_INS):
            for file in place.iterdir():
                if file.is_file():
                    shutil.copy(file, folder)
        for name, old, new in changes:
            text = (folder / name).read_text()
            assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
            (folder / name).write_text(text.replace(old, new))
        return _compile(folder, variants)

    return compiled


def _compile(folder: Path, variants: Sequence[Variant]) -> ctypes.CDLL:
    cases = "".join(
        f"CASE({TYPES[one.dtype][1]},{one.rows},{one.columns},{str(one.gated).lower()})"
        for one in variants
    )
    defines = [flag for flag in SOURCES.command if flag.startswith("-D")]
    defines += ["-DPLAN_SPLIT_WORK=1", "-DPLAN_MAX_SPLITS=1", "-DPLAN_MIN_CHUNK=64"]
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", *defines]
    done = subprocess.run(
        [*command, f"-DKERNELS={cases}", "-x", "c++", "emulator.cpp", "-o", "emulator.so"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "emulator.so"))
    library.run.restype = ctypes.c_char_p
    library.variants = list(variants)
    return library


@pytest.fixture(scope="session")
def every(compiled: Callable[..., ctypes.CDLL]) -> ctypes.CDLL:
    """All kernels."""
    return compiled(VARIANTS)


@pytest.fixture(scope="session")
def emulate_any(every: ctypes.CDLL) -> Callable[..., Tensor]:
    """Runs a kernel on tensors on the CPU."""
    return partial(emulate_with, every)


@pytest.fixture(scope="session")
def emulate_changed(
    compiled: Callable[..., ctypes.CDLL],
) -> Callable[..., Callable[..., Tensor]]:
    """``emulate_any`` for one variant of changed sources."""

    def changed(variant: Variant, changes: Sequence[tuple[str, str, str]]) -> Callable[..., Tensor]:
        return partial(emulate_with, compiled([variant], changes))

    return changed


def emulate_with(
    library: Any,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    config: Streamed,
    gated: bool,
    seed: int = 0,
    programs: int | None = None,
) -> Tensor:
    """One call of a compiled kernel, into a result of NaN.

    Raises:
        Broken: it did what the card would not forgive.
    """
    outs = weight.shape[0] // 2 if gated else weight.shape[0]
    # Rows of a wider result, whose other columns must stay what they are.
    room = torch.full((len(x), outs + 8), torch.nan, dtype=x.dtype)
    out = room[:, :outs]
    kernel = library.variants.index(variant_of(config, x.dtype, gated=gated))
    parameters = params_of(x, bias, out, config, gated=gated)
    boxes = ((weight, matrix_boxes(weight, config, gated=gated)), (x, rows_boxes(x, config)))
    maps = [_map(*each) for each in boxes]
    told = [ctypes.byref(each) for each in (parameters, *maps)]
    started = programs or programs_for(config, parameters.tiles)
    wrong = library.run(kernel, *told, config.threads, started, seed)
    if wrong is not None:
        raise Broken(wrong.decode())
    assert room[:, outs:].isnan().all()
    return out


def _map(matrix: Tensor, boxes: Boxes) -> Any:
    """What ``machine.cuh`` of the stand-ins finds in a tensor map, in 64-byte alignment."""
    numbers = (matrix.data_ptr(), *boxes.sizes, *boxes.strides, *boxes.box[1:])
    storage = ctypes.create_string_buffer(192)
    made = (ctypes.c_int64 * 16).from_buffer(storage, -ctypes.addressof(storage) % 64)
    made[: len(numbers)] = numbers
    return made
