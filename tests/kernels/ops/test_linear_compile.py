"""Every shipped configuration of the products compiles for sm_90 without a GPU, within gates."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from jetflow_kernels.ops.linear_few_kernel import linear_few_kernel
from jetflow_kernels.ops.linear_kernel import linear_kernel
from jetflow_kernels.ops.linear_plan import Config, Few, Shares, all_configs, configs_for
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SHARED, RESERVED, REGISTERS, WARPS = 228 * 1024, 1024, 65536, 64
"""Of a multiprocessor of sm_90; RESERVED bytes of shared memory go to each program."""
MOST_SHARED = 227 * 1024
TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
FEW_PROGRAMS = 4
"""Programs of threads that a multiprocessor holds at least: what is on its way of the matrix."""


def compiled(
    kernel: Any, kind: str, constants: dict[str, Any], aligned: bool, **options: Any
) -> Any:
    """A kernel for Hopper; pointers, strides and the inner dimension are multiples of 16."""
    types = dict.fromkeys(("weight", "x", "bias", "y"), f"*{kind}")
    types |= {"partial": "*fp32", "arrived": "*i32"}
    if constants.get("BOXED"):
        for name, rows in (("weight_box", "BLOCK_M"), ("x_box", "BLOCK_N")):
            types[name] = f"tensordesc<{kind}[{constants[rows]}, {constants['BLOCK_K']}]>"
    else:
        constants = {**constants, "weight_box": None, "x_box": None}
    names = kernel.arg_names
    full = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    attrs = {
        (at,): [["tt.divisibility", 16]]
        for at, name in enumerate(names)
        if full[name].startswith("*") or (aligned and re.fullmatch(r"\w+_stride|ins", name))
    }
    kept = {name: value for name, value in constants.items() if name in names}
    source = ASTSource(kernel, full, constexprs=kept, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def usage_of(binary: Any, folder: Path) -> int:
    """Registers of a thread; fails where any spill."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    report = subprocess.run(
        [str(tool), "--dump-resource-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", report)
    assert usage is not None, report
    assert (int(usage[2]), int(usage[3])) == (0, 0), report
    return int(usage[1])


def programs_held(binary: Any, folder: Path, warps: int) -> int:
    """Programs that a multiprocessor holds at once."""
    each = -(-usage_of(binary, folder) // 8) * 8 * 32 * warps
    shared = SHARED // (binary.metadata.shared + RESERVED)
    return min(REGISTERS // each, shared, WARPS // warps)


def shares(
    config: Shares, dtype: torch.dtype, *, gated: bool, boxed: bool = True, bias: bool = False
) -> Any:
    boxed = boxed and dtype != torch.float32
    constants: dict[str, Any] = {
        "BLOCK_M": config.columns, "BLOCK_N": config.rows, "BLOCK_K": config.depth,
        "STAGES": config.stages, "AHEAD": config.ahead if boxed else 0, "WIDTH": dtype.itemsize,
        "GATED": gated, "BOXED": boxed, "OVERLAPPED": boxed, "WIDEN": False,
        **({} if bias else {"bias": None}),
    }  # fmt: skip
    return compiled(
        linear_kernel, TYPES[dtype], constants, boxed or dtype == torch.float32,
        num_warps=config.warps, num_stages=config.stages, launch_pdl=boxed,
    )  # fmt: skip


def few(config: Few, dtype: torch.dtype, rows: int, *, gated: bool) -> Any:
    constants = {
        "ROWS": rows, "BLOCK_M": config.columns, "BLOCK_K": config.depth, "GATED": gated,
        "OVERLAPPED": True, "bias": None,
    }  # fmt: skip
    return compiled(
        linear_few_kernel, TYPES[dtype], constants, True, num_warps=config.warps, launch_pdl=True
    )


def gate(config: Config, dtype: torch.dtype, folder: Path, *, gated: bool, bias: bool) -> None:
    if isinstance(config, Few):
        for rows in (1, 2, 4):
            binary = few(config, dtype, rows, gated=gated)
            ptx = binary.asm["ptx"]
            least = FEW_PROGRAMS if rows == 1 and dtype != torch.float32 else 1
            assert programs_held(binary, folder, config.warps) >= least
            # The matrix is on its way before the kernel ahead has ended, 16 bytes at a time.
            wide = re.compile(r"ld\.global[\w.:]*\.v4\.b32")
            assert wide.search(ptx[: ptx.index("griddepcontrol.wait")])
        return
    binary = shares(config, dtype, gated=gated, bias=bias)
    ptx = binary.asm["ptx"]
    assert binary.metadata.shared <= MOST_SHARED
    assert programs_held(binary, folder, config.warps) >= config.resident
    if dtype == torch.float32:
        # Exact products: no tensor core, whose type would be tf32.
        assert "mma" not in ptx
        return
    assert "wgmma.mma_async" in ptx and "mma.sync" not in ptx
    assert "cp.async.bulk.tensor" in ptx
    asked, waits = ptx.index("cp.async.bulk.prefetch.L2"), ptx.index("griddepcontrol.wait")
    # Rows may be copied only behind the wait, the matrix is asked for before it.
    assert asked < waits < ptx.index("cp.async.bulk.tensor")


QUICK = [
    (configs_for(1, torch.bfloat16, gated=False)[0], torch.bfloat16, False),
    (configs_for(64, torch.bfloat16, gated=False)[0], torch.bfloat16, False),
    (configs_for(16, torch.bfloat16, gated=True)[0], torch.bfloat16, True),
]
SHIPPED = [
    (config, dtype, gated)
    for dtype in TYPES
    for gated in (False, True)
    for config in all_configs(dtype, gated=gated)
]


def named(case: Any) -> str:
    return str(case).removeprefix("torch.")


@pytest.mark.parametrize(("config", "dtype", "gated"), QUICK, ids=named)
def test_most_used(config: Config, dtype: torch.dtype, gated: bool, tmp_path: Path) -> None:
    gate(config, dtype, tmp_path, gated=gated, bias=False)


@pytest.mark.slow
@pytest.mark.parametrize(("config", "dtype", "gated"), SHIPPED, ids=named)
def test_all_shipped(config: Config, dtype: torch.dtype, gated: bool, tmp_path: Path) -> None:
    gate(config, dtype, tmp_path, gated=gated, bias=not gated)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 64, 256])
def test_matrices_that_boxes_do_not_describe(rows: int, tmp_path: Path) -> None:
    config = configs_for(rows, torch.bfloat16, gated=False)[0 if rows > 4 else -1]
    assert isinstance(config, Shares)
    binary = shares(config, torch.bfloat16, gated=False, boxed=False)
    assert binary.metadata.shared <= MOST_SHARED
    assert "cp.async.bulk.tensor" not in binary.asm["ptx"]
    assert "wgmma.mma_async" in binary.asm["ptx"]
