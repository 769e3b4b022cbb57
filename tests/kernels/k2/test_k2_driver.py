"""What reaches the driver, by a stand-in that notes it."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.k2 import build, driver, launch
from jetflow_kernels.attention.k2.parameters import Params, inverse

STAND_IN = Path(__file__).parent / "emulation" / "driver.c"


class Encoded(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64), ("sizes", ctypes.c_uint64 * 5),
        ("strides", ctypes.c_uint64 * 4), ("type", ctypes.c_uint32), ("rank", ctypes.c_uint32),
        ("box", ctypes.c_uint32 * 5), ("steps", ctypes.c_uint32 * 5), ("options", ctypes.c_int * 4),
    )  # fmt: skip


class Launched(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_uint64), ("stream", ctypes.c_uint64), ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3), ("shared", ctypes.c_uint32),
        ("cluster", ctypes.c_uint32 * 3), ("early", ctypes.c_uint32),
        ("attributes", ctypes.c_uint32), ("parameters", ctypes.c_ubyte * 288 * 3),
    )  # fmt: skip


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("driver") / "libcuda.so"
    subprocess.run(
        [
            *("gcc", f"-DPARAMETER_BYTES={ctypes.sizeof(Params)}"),
            *("-shared", "-fPIC", "-o", str(made), str(STAND_IN)),
        ],
        check=True,
    )
    return made


@pytest.fixture
def noted(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    """The stand-in, in the driver's place for one test."""
    monkeypatch.setattr(driver, "LIBRARY", str(library))
    caches = (driver._library, driver.load, driver.tensor_map)
    for cache in caches:
        cache.cache_clear()
    yield ctypes.CDLL(str(library))
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def card(noted: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A card that computes nothing; the list receives the arguments of merges."""
    merged: list[Any] = []
    monkeypatch.setattr(build, "cubin", lambda variant: b"code of " + variant.name.encode())
    monkeypatch.setattr(launch, "merge_pieces", lambda *given: merged.append(given))
    monkeypatch.setattr(launch, "_multiprocessors", lambda device: 132)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    stream = type("Stream", (), {"cuda_stream": 77})
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    return merged


def test_one_call(noted: ctypes.CDLL, card: list[Any], make_batch: Callable[..., Any]) -> None:
    batch = make_batch((5, 2), (9, 0), page=48, heads=(4, 2), dim=64, dtype=torch.bfloat16)
    arguments = TreeAttentionArguments(**batch.arguments)
    out, lse = torch.empty_like(batch.q), torch.empty(batch.q.shape[:2])
    launch.launch(arguments, out=out, lse=lse, scale=-0.5, cluster=plan.BY_LENGTH)

    name = b"tree_attention_bf16_d64_m64"
    assert (ctypes.c_char * 64).in_dll(noted, "loaded").value == b"code of " + name
    assert (ctypes.c_char * 64).in_dll(noted, "wanted").value == name
    shared = 2 * 64 * 64 + 2 * 4 * (2 * 64 * 64) + 8 * 17
    assert list((ctypes.c_int * 2).in_dll(noted, "attribute")) == [8, shared]
    assert ctypes.c_int.in_dll(noted, "context").value == 1

    encoded = Encoded.in_dll(noted, "encoded")
    pages = len(batch.v_pool)
    assert (encoded.address, encoded.type, encoded.rank) == (batch.v_pool.data_ptr(), 9, 4)
    assert list(encoded.sizes)[:4] == [64, 48, 2, pages]
    assert list(encoded.strides)[:3] == [2 * 2 * 64, 2 * 64, 2 * 48 * 2 * 64]
    assert list(encoded.box)[:4] == [64, 16, 1, 1] and list(encoded.steps)[:4] == [1] * 4
    assert list(encoded.options) == [0, 3, 3, 0]

    started = Launched.in_dll(noted, "launched")
    assert started.function == ctypes.addressof(ctypes.c_char.in_dll(noted, "wanted"))
    assert (started.stream, started.shared) == (77, shared)
    assert (list(started.grid), list(started.block)) == ([264, 1, 1], [256, 1, 1])
    assert [bytes(one)[:128] for one in started.parameters][1:] == [b"\x5a" * 128] * 2
    params = Params.from_buffer_copy(bytes(started.parameters[0]))
    assert params.q == batch.q.data_ptr() and params.out == out.data_ptr()
    assert params.ancestors == batch.ancestors.data_ptr() and params.lse == lse.data_ptr()
    assert (params.q_row, params.q_head) == (4 * 64, 64)
    assert (params.v_page, params.v_slot, params.v_head) == (48 * 128, 128, 64)
    assert (params.table_request, params.table_entry) == batch.page_table.stride()
    assert (params.rows, params.requests, params.heads, params.group) == (len(out), 2, 4, 2)
    assert (params.page, params.box, params.words) == (48, 16, 1)
    assert (params.q_keep, params.q_flip) == (0xFFFFFFFF, 0x80008000)
    assert params.factor == pytest.approx(0.5 * 1.4426950408889634)
    assert (params.kv_heads, params.cluster) == (2, plan.BY_LENGTH)
    assert list(started.cluster) == [0] * 3 and (started.early, started.attributes) == (1, 1)
    assert card[0][0] is arguments and card[0][5] == 264


@pytest.mark.parametrize(("size", "grid"), [(1, 32), (2, 64), (3, 96), (8, 256), (None, 32)])
def test_clusters(
    noted: ctypes.CDLL,
    card: list[Any],
    make_batch: Callable[..., Any],
    size: int | None,
    grid: int,
) -> None:
    """32 tiles of 64 rows: four of each of eight heads."""
    batch = make_batch((40, 40), (9, 0), heads=(16, 8), dim=64, dtype=torch.float16, padding=0)
    arguments = TreeAttentionArguments(**batch.arguments)
    out = torch.empty_like(batch.q)
    tiles = plan.tiles_for(1, 1, 1, 64, torch.float16)
    given = {"tiles": tiles, "cluster": size, "early": False}
    launch.launch(arguments, out=out, lse=None, scale=1.0, **given)  # type: ignore[arg-type]
    started = Launched.in_dll(noted, "launched")
    cluster = size or 1
    assert list(started.cluster) == ([cluster, 1, 1] if cluster > 1 else [0] * 3)
    assert (started.early, started.attributes) == (0, int(cluster > 1))
    assert list(started.grid) == [grid, 1, 1]
    params = Params.from_buffer_copy(bytes(started.parameters[0]))
    assert params.cluster == cluster
    assert params.cluster_inverse == inverse(cluster)
    assert params.partial is None and not card
    assert (params.group_inverse, params.page_inverse) == (2**31 + 1, 2**28 + 1)
    # No more clusters than fit, whatever the batch.
    launch.launch(arguments, out=out, lse=None, scale=1.0, programs=17, **given)  # type: ignore[arg-type]
    assert Launched.in_dll(noted, "launched").grid[0] == max(1, 17 // cluster) * cluster


def test_a_refusal_is_said_with_the_driver_s_words(noted: ctypes.CDLL) -> None:
    ctypes.c_int.in_dll(noted, "failing").value = 1
    with pytest.raises(driver.DriverError, match=r"cuCtxGetCurrent failed: invalid argument \(1\)"):
        driver.use_device(0)
    ctypes.c_int.in_dll(noted, "failing").value = 7
    with pytest.raises(driver.DriverError, match=r"cuCtxGetCurrent failed: unknown error \(7\)"):
        driver.use_device(0)
    ctypes.c_int.in_dll(noted, "failing").value = 0


def test_a_missing_driver_is_named(
    noted: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "LIBRARY", str(tmp_path / "libnone.so"))
    driver._library.cache_clear()
    with pytest.raises(driver.DriverError, match=r"the CUDA driver \(.*libnone.so\) cannot be"):
        driver.use_device(0)
