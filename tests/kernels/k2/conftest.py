"""The sm_90a kernel's own sources, compiled for the CPU over stand-ins for its instructions."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2 import build
from jetflow_kernels.attention.k2.configurations import CONFIGURATIONS, Configuration
from jetflow_kernels.attention.k2.launch import _params, _set_scale, box_rows
from torch import Tensor

STAND_INS = Path(__file__).parent / "emulation"
SOURCES = Path(build.__file__).parent


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The library of ``emulator.cpp``."""
    folder = tmp_path_factory.mktemp("emulator")
    for file in (*SOURCES.glob("*.cu*"), *STAND_INS.iterdir()):
        shutil.copy(file, folder)
    defines = [flag for flag in build.FLAGS if flag.startswith("-D")]
    command = ["g++", "-std=c++20", "-O2", "-w", "-shared", "-fPIC", *defines]
    done = subprocess.run(
        [*command, "-x", "c++", "emulator.cpp", "-o", "emulator.so"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    library = ctypes.CDLL(str(folder / "emulator.so"))
    library.run.restype = ctypes.c_char_p
    library.emulated_visible.argtypes = [*[ctypes.c_int] * 3, *[ctypes.c_uint64] * 2]
    library.emulated_visible.restype = ctypes.c_uint64
    return library


@pytest.fixture(scope="session")
def emulate(emulator: ctypes.CDLL) -> Callable[..., tuple[Tensor, Tensor]]:
    """Runs the kernel on tensors on the CPU: output and log-sum-exp, pieces put together."""

    def emulate(
        arguments: dict[str, Tensor], *, scale: float, rows: int, programs: int = 3, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        return _emulate(emulator, TreeAttentionArguments(**arguments), scale, rows, programs, seed)

    return emulate


def _emulate(
    emulator: ctypes.CDLL,
    arguments: TreeAttentionArguments,
    scale: float,
    rows: int,
    programs: int,
    seed: int,
) -> tuple[Tensor, Tensor]:
    q, pool = arguments.q, arguments.k_pool
    capacity = arguments.page_table.shape[1] * pool.shape[1]
    room = plan.partial_rows(len(q), len(arguments.prefix_len), q.shape[1], capacity)
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:2], torch.nan)
    partial, partial_lse = (
        torch.full((room, *q.shape[1:]), torch.nan),
        torch.full((room, q.shape[1]), torch.nan),
    )
    box = box_rows(pool.shape[1])
    params = _params(arguments, out, lse, partial, partial_lse, box)
    _set_scale(params, scale)
    maps = [_map(tensor, box) for tensor in (pool, arguments.v_pool)]
    kernel = CONFIGURATIONS.index(Configuration(dtype=q.dtype, dim=q.shape[2], rows=rows))
    wrong = emulator.run(kernel, *map(ctypes.byref, (params, *maps)), programs, seed)  # type: ignore[arg-type]
    assert wrong is None, wrong.decode()
    _merge(arguments, out, lse, partial, partial_lse)
    return out, lse


def _map(pool: Tensor, box: int) -> Any:
    """What ``machine.cuh`` of the stand-ins finds in a tensor map, in 64-byte alignment."""
    pages, page, heads, dim = pool.shape
    by_page, by_slot, by_head, _ = (2 * stride for stride in pool.stride())
    numbers = (pool.data_ptr(), dim, page, heads, pages, by_slot, by_head, by_page, box)
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
