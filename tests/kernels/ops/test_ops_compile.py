"""Norms and gates compile for sm_90, without a GPU, without spills, with loads of 16 bytes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from jetflow_kernels.ops import gate, norms
from jetflow_kernels.ops.gate_kernel import silu_mul_kernel
from jetflow_kernels.ops.norm_kernel import rms_norm_kernel
from jetflow_kernels.round.checks import power_of_two
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

NORM = (
    "x:*T change:*T weight:*T total:*T out:*T x_stride:i32 change_stride:i32 total_stride:i32 "
    "out_stride:i32 width:i32 eps:fp32"
)
GATE = "gate_up:*T out:*T stride:i32 out_stride:i32 width:i32"
BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
ALIGNED = r".*stride|width"


def compiled(
    kernel: Any,
    signature: str,
    constants: dict[str, Any],
    warps: int,
    aligned: str,
    overlapped: bool = False,
) -> Any:
    """A kernel compiled for Hopper; pointers, and what is named, are multiples of 16."""
    types = dict(item.split(":") for item in signature.split())
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: types.get(name, "constexpr") for name in names},
        constexprs=constants | {"OVERLAPPED": overlapped},
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if types.get(name, "").startswith("*") or re.fullmatch(aligned, name)
        },
    )
    options = {"num_warps": warps, "launch_pdl": overlapped}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def check(binary: Any, folder: Path, registers: int) -> str:
    """Fails where registers spill or are too many; returns the PTX."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    report = subprocess.run(
        [str(tool), "--dump-resource-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", report)
    assert usage is not None, report
    assert (int(usage[2]), int(usage[3])) == (0, 0), report
    assert int(usage[1]) <= registers, report
    ptx = binary.asm["ptx"]
    assert isinstance(ptx, str)
    return ptx


def norm(kind: str, width: int, *, add: bool, aligned: str = ALIGNED) -> tuple[Any, int, int]:
    """The kernel for rows of a width, with its block and warps."""
    block = power_of_two(width)
    warps = norms.warps_of(block, BYTES[kind])
    signature, constants = NORM.replace("*T", f"*{kind}"), {"BLOCK": block}
    if not add:
        signature = re.sub(r"(change|total):\S+ ", "", signature)
        constants |= {"change": None, "total": None}
    return compiled(rms_norm_kernel, signature, constants, warps, aligned), block, warps


def silu(kind: str, width: int, aligned: str = ALIGNED) -> tuple[Any, int, int]:
    """The kernel for gates of a width, with its part and warps."""
    part = power_of_two(min(width, gate.PART))
    warps = gate.warps_of(part, BYTES[kind])
    signature = GATE.replace("*T", f"*{kind}")
    return compiled(silu_mul_kernel, signature, {"PART": part}, warps, aligned), part, warps


def vectors(columns: int, kind: str, warps: int) -> int:
    """Moves of 16 bytes that a thread needs for one row of one tensor."""
    return columns * BYTES[kind] // 16 // (32 * warps)


SLOW_NORMS = [
    # Widths of SmolLM2-135M, Qwen3-30B-A3B and Qwen3-8B, the largest allowed, and every type.
    ("bf16", 576, True), ("bf16", 2048, True), ("bf16", 4096, False), ("bf16", 8192, True),
    ("bf16", norms.MOST_WIDTH, True), ("fp16", 4096, True), ("fp32", 576, True),
    ("fp32", 4096, True), ("fp32", norms.MOST_WIDTH, True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "width", "add"),
    [("bf16", 4096, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_NORMS)],
)
def test_norms(tmp_path: Path, kind: str, width: int, add: bool) -> None:
    binary, block, warps = norm(kind, width, add=add)
    ptx = check(binary, tmp_path, 128)
    each = vectors(block, kind, warps)
    assert each >= 1
    assert len(re.findall(r"ld\.global[\w.:]*\.v4\.b32", ptx)) == (3 if add else 2) * each
    assert len(re.findall(r"st\.global[\w.:]*\.v4\.b32", ptx)) == (2 if add else 1) * each


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        ("bf16", 12288),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            # An expert of Qwen3-30B-A3B, SmolLM2-135M, and every type.
            for case in (("bf16", 768), ("bf16", 1536), ("fp16", 12288), ("fp32", 1536))
        ),
    ],
)
def test_gates(tmp_path: Path, kind: str, width: int) -> None:
    binary, part, warps = silu(kind, width)
    ptx = check(binary, tmp_path, 64)
    each = vectors(part, kind, warps)
    assert each >= 1
    assert len(re.findall(r"ld\.global[\w.:]*\.v4\.b32", ptx)) == 2 * each
    assert len(re.findall(r"st\.global[\w.:]*\.v4\.b32", ptx)) == each


@pytest.mark.slow
def test_rows_of_any_stride(tmp_path: Path) -> None:
    check(norm("bf16", 4099, add=True, aligned="none")[0], tmp_path, 128)
    check(silu("bf16", 1001, aligned="none")[0], tmp_path, 96)


def test_kernels_that_wait_for_the_one_ahead_by_themselves(tmp_path: Path) -> None:
    for kernel, signature, constants in (
        (rms_norm_kernel, NORM, {"BLOCK": 4096}),
        (silu_mul_kernel, GATE, {"PART": gate.PART}),
    ):
        binary = compiled(
            kernel, signature.replace("*T", "*bf16"), constants, 4, ALIGNED, overlapped=True
        )
        ptx = check(binary, tmp_path, 128)
        # Everyone who may come next is let in first, and nothing of the rows is read before.
        let_in = ptx.index("griddepcontrol.launch_dependents")
        waits = ptx.index("griddepcontrol.wait")
        assert let_in < waits < ptx.index("st.global")
