"""The sm_90a kernel's own sources, compiled for the CPU over stand-ins for its instructions."""

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
from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2 import build
from jetflow_kernels.attention.k2.configurations import (
    CONFIGURATIONS,
    STEP,
    SWIFT_CONFIGURATIONS,
    Configuration,
)
from jetflow_kernels.attention.k2.parameters import (
    Boxes,
    box_rows,
    params_of,
    query_boxes,
    query_nodes,
    set_scale,
)
from torch import Tensor

STAND_INS = Path(__file__).parent / "emulation"
SOURCES = Path(build.__file__).parent


QUICK = [
    Configuration(dtype=torch.bfloat16, dim=64, rows=128, swift=swift) for swift in (False, True)
]
"""Of the default tests: compiling all takes longer."""


class Broken(AssertionError):
    """The kernel did what the card would not forgive."""


@pytest.fixture(scope="session")
def emulator(compiled: Callable[..., ctypes.CDLL]) -> ctypes.CDLL:
    """The library of ``emulator.cpp`` with the kernels of the default tests."""
    return compiled(QUICK)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ctypes.CDLL]:
    """Compiles ``emulator.cpp`` with some kernels, and with changes to the sources."""

    def compiled(
        variants: Sequence[Configuration], changes: Sequence[tuple[str, str, str]] = ()
    ) -> ctypes.CDLL:
        folder = tmp_path_factory.mktemp("emulator")
        for file in (*SOURCES.glob("*.cu*"), *STAND_INS.iterdir()):
            shutil.copy(file, folder)
        for name, old, new in changes:
            text = (folder / name).read_text()
            assert text.count(old) == 1, f"{name} has {text.count(old)} times {old!r}"
            (folder / name).write_text(text.replace(old, new))
        return _compile(folder, variants)

    return compiled


def _compile(folder: Path, variants: Sequence[Configuration]) -> ctypes.CDLL:
    cases = "".join(
        f"CASE({one.element},{one.dim},{one.rows},{int(one.swift)})" for one in variants
    )
    defines = [flag for flag in build.SOURCES.command if flag.startswith("-D")]
    command = ["g++", "-std=c++20", "-O1", "-w", "-shared", "-fPIC", *defines]
    done = subprocess.run(
        [*command, f"-DKERNELS={cases}", "-x", "c++", "emulator.cpp", "-o", "emulator.so"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "emulator.so"))
    library.run.restype = ctypes.c_char_p
    library.variants = list(variants)  # type: ignore[attr-defined]
    library.emulated_divided.argtypes = [ctypes.c_int, ctypes.c_uint32]
    library.emulated_share_length.argtypes = [*[ctypes.c_int] * 3, ctypes.c_uint32]
    library.emulated_visible.argtypes = [*[ctypes.c_int] * 3, *[ctypes.c_uint64] * 2]
    library.emulated_visible.restype = ctypes.c_uint64
    return library


@pytest.fixture(scope="session")
def emulate(emulator: ctypes.CDLL) -> Callable[..., tuple[Tensor, Tensor]]:
    """Runs the kernel on tensors on the CPU: output and log-sum-exp, pieces put together."""
    return partial(emulate_with, emulator)


@pytest.fixture(scope="session")
def emulate_any(compiled: Callable[..., ctypes.CDLL]) -> Callable[..., tuple[Tensor, Tensor]]:
    """``emulate`` for every variant."""
    return partial(emulate_with, compiled((*CONFIGURATIONS, *SWIFT_CONFIGURATIONS)))


@pytest.fixture(scope="session")
def emulate_changed(
    compiled: Callable[..., ctypes.CDLL],
) -> Callable[..., Callable[..., tuple[Tensor, Tensor]]]:
    """``emulate`` for one variant of changed sources."""

    def changed(
        variant: Configuration, changes: Sequence[tuple[str, str, str]]
    ) -> Callable[..., tuple[Tensor, Tensor]]:
        return partial(emulate_with, compiled([variant], changes))

    return changed


def emulate_with(
    library: Any,
    given: dict[str, Tensor],
    *,
    scale: float,
    rows: int,
    programs: int = 3,
    seed: int = 0,
    cluster: int = plan.BY_LENGTH,
    swift: bool = False,
) -> tuple[Tensor, Tensor]:
    """One call of a compiled kernel; ``programs`` is of clusters where they have several.

    Raises:
        Broken: it did what the card would not forgive.
    """
    arguments = TreeAttentionArguments(**given)
    q, pool = arguments.q, arguments.k_pool
    capacity = arguments.page_table.shape[1] * pool.shape[1]
    room = plan.partial_rows(len(q), len(arguments.prefix_len), q.shape[1], capacity)
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:2], torch.nan)
    partials = (
        torch.full((room, *q.shape[1:]), torch.nan),
        torch.full((room, q.shape[1]), torch.nan),
    )
    box = box_rows(pool.shape[1])
    listed = cluster == plan.BY_LENGTH
    params = params_of(arguments, out, lse, partials if listed else None, box, cluster)
    set_scale(params, scale)
    variant = Configuration(dtype=q.dtype, dim=q.shape[2], rows=rows, swift=swift)
    if swift:
        params.q_nodes = query_nodes(params)
    maps = [_map(tensor, *_boxes(tensor, box)) for tensor in (pool, arguments.v_pool)]
    maps.append(_map(q, *query_boxes(q, params.group, params.q_nodes)))
    kernel = library.variants.index(variant)
    started = programs * max(cluster, 1)
    wrong = library.run(kernel, rows, *map(ctypes.byref, (params, *maps)), started, seed)
    if wrong is not None:
        raise Broken(wrong.decode())
    if listed:
        _merge(arguments, out, lse, *partials)
    return out, lse


def _boxes(pool: Tensor, box: int) -> Boxes:
    pages, page, heads, dim = pool.shape
    by_page, by_slot, by_head, _ = (2 * stride for stride in pool.stride())
    return (dim, page, heads, pages), (by_slot, by_head, by_page), (STEP, box, 1, 1)


def _map(tensor: Tensor, sizes: Any, strides: Any, box: Any) -> Any:
    """What ``machine.cuh`` of the stand-ins finds in a tensor map, in 64-byte alignment."""
    numbers = (tensor.data_ptr(), *sizes, *strides, *box[1:])
    storage = ctypes.create_string_buffer(192)
    made = (ctypes.c_int64 * 16).from_buffer(storage, -ctypes.addressof(storage) % 64)
    made[: len(numbers)] = numbers
    return made


def _merge(
    arguments: TreeAttentionArguments, out: Tensor, lse: Tensor, partial: Tensor, weights: Tensor
) -> None:
    """What ``merge.py`` does."""
    heads, place = out.shape[1], 0
    starts = arguments.cu_nodes.tolist()
    for index, prefix in enumerate(arguments.prefix_len.tolist()):
        first, count = starts[index], starts[index + 1] - starts[index]
        pieces = plan.splits(prefix, count, heads) if count else 0
        if pieces > 1:
            mine = slice(place, place + pieces * count)
            values = partial[mine].view(pieces, count, *out.shape[1:])
            logs = weights[mine].view(pieces, count, heads)
            share = torch.softmax(logs * torch.log(torch.tensor(2.0)), 0)
            out[first : first + count] = (values * share[..., None]).sum(0).to(out.dtype)
            lse[first : first + count] = torch.logsumexp(logs * torch.log(torch.tensor(2.0)), 0)
        place += pieces * count
