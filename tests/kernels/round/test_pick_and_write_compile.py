"""Sampled picks and the fused cache write compile for sm_90, without a GPU, without spills."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
from jetflow_kernels.round.cache_write import HEADS, warps_of
from jetflow_kernels.round.cache_write_kernel import norm_rope_kv_write_kernel
from jetflow_kernels.round.checks import power_of_two
from jetflow_kernels.round.sampled import PART
from jetflow_kernels.round.sampled_kernel import sampled_merge_kernel, sampled_part_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SIGNATURE = (
    "logits:*bf16 temperatures:*fp32 seeds:*i64 positions:*i32 part_values:*fp64 "
    "part_tokens:*i32 part_broken:*i32 stride:i32 vocabulary:i32 parts:i32"
)
MERGE = "part_values:*fp64 part_tokens:*i32 part_broken:*i32 picks:*i32 broken:*i1 parts:i32"
WRITE = (
    "qkv:*T positions:*i32 cos:*fp32 sin:*fp32 slots:*i64 q_weight:*T k_weight:*T out:*T "
    "k_pool:*T v_pool:*T q_heads:i32 kv_heads:i32 table_rows:i32 page:i32 slots_end:i32 "
    "qkv_stride:i32 cos_stride:i32 sin_stride:i32 out_stride:i32 out_head:i32 k_page:i32 "
    "k_slot:i32 k_head:i32 v_page:i32 v_slot:i32 v_head:i32 eps:fp32"
)


def compiled(
    kernel: Any, signature: str, constants: dict[str, Any], aligned: str = "", **options: Any
) -> Any:
    """A kernel compiled for Hopper; pointers, and what is named, are multiples of 16."""
    types = dict(item.split(":") for item in signature.split())
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {name: types.get(name, "constexpr") for name in names},
        constexprs=constants,
        attrs={
            (i,): [["tt.divisibility", 16]]
            for i, name in enumerate(names)
            if types.get(name, "").startswith("*") or re.fullmatch(aligned, name)
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def check(binary: Any, folder: Path, registers: int) -> str:
    """Fails where registers spill or are too many; returns the PTX."""
    assert binary.metadata.shared <= 227 * 1024
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


@pytest.mark.parametrize(
    "logits", ["bf16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fp32", "fp16"))]
)
def test_parts_of_sampled_picks(tmp_path: Path, logits: str) -> None:
    signature = SIGNATURE.replace("bf16", logits)
    constants = {"PART": PART}
    # Four programs of a multiprocessor at least.
    binary = compiled(sampled_part_kernel, signature, constants, "stride|vocabulary", num_warps=4)
    ptx = check(binary, tmp_path, 128)
    assert ptx.count("ld.global.v4") == PART // 128 // (4 if logits == "fp32" else 8)
    # A float32 logarithm of the card's own is not exact near 1.
    assert "lg2.approx" not in ptx


@pytest.mark.slow
def test_sampled_picks_of_any_vocabulary_and_int64(tmp_path: Path) -> None:
    signature = SIGNATURE.replace("positions:*i32", "positions:*i64")
    # Three programs of a multiprocessor at least.
    for part in (32, PART):
        check(compiled(sampled_part_kernel, signature, {"PART": part}, num_warps=4), tmp_path, 168)


@pytest.mark.parametrize("parts", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_merge_of_sampled_picks(tmp_path: Path, parts: int) -> None:
    check(compiled(sampled_merge_kernel, MERGE, {"PARTS": parts}, num_warps=1), tmp_path, 64)


def write(kind: str, dim: int, *, norm: bool, table: str = "fp32", aligned: str = ".*_.*") -> Any:
    half = power_of_two(dim // 2)
    signature = WRITE.replace("*T", f"*{kind}").replace(
        "cos:*fp32 sin:*fp32", f"cos:*{table} sin:*{table}"
    )
    constants: dict[str, Any] = {"DIM": dim, "HALF": half, "HEADS": HEADS}
    if not norm:
        signature = re.sub(r"[qk]_weight:\S+ ", "", signature)
        constants |= {"q_weight": None, "k_weight": None}
    return compiled(
        norm_rope_kv_write_kernel, signature, constants, aligned,
        num_warps=warps_of(half), enable_fp_fusion=False,
    )  # fmt: skip


STRIDES = "(qkv|cos|sin|out)_stride|out_head|[kv]_(page|slot|head)"


@pytest.mark.parametrize(
    ("kind", "dim", "norm"),
    [
        ("bf16", 128, True),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("bf16", 64, False), ("bf16", 128, False), ("fp16", 64, True), ("fp16", 256, True),
                ("bf16", 96, True), ("fp32", 64, True), ("fp32", 128, False), ("fp32", 256, True),
            )
        ),
    ],
)  # fmt: skip
def test_cache_write(tmp_path: Path, kind: str, dim: int, norm: bool) -> None:
    ptx = check(write(kind, dim, norm=norm, aligned=STRIDES), tmp_path, 128)
    # Queries, keys and values move 16 bytes at a time: two halves each, read and written.
    size = 4 if kind == "fp32" else 2
    tile = HEADS * power_of_two(dim // 2) * size
    each = tile // 16 // (32 * warps_of(power_of_two(dim // 2)))
    assert ptx.count("st.global.v4") == 3 * 2 * each
    assert ptx.count("ld.global.v4") >= 3 * 2 * each
    # A product that is rounded stays apart from the sum.
    assert "fma.rn.f32" not in ptx


@pytest.mark.slow
def test_cache_write_of_any_strides(tmp_path: Path) -> None:
    check(write("bf16", 128, norm=True, table="bf16", aligned="none"), tmp_path, 128)
