"""Row attention compiles for sm_90 without a GPU, and leaves room for many programs."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from jetflow_kernels.round.checks import power_of_two
from jetflow_kernels.rows.attention_kernel import row_attention_kernel
from jetflow_kernels.rows.tiles import tiles_for, width_of
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

REGISTERS, SHARED, WARPS = 65536, 228 * 1024, 64
RESERVED = 1024
"""Bytes of shared memory that the device takes for each program."""
TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
# Type, head dim, query heads of a key head, equal strides, programs of a multiprocessor at least.
QUICK = [
    (torch.bfloat16, 64, 3, True, 6),
    (torch.bfloat16, 128, 4, True, 6),
]
SHIPPED = [
    *((torch.bfloat16, 64, group, True, 6) for group in (1, 8, 16)),
    *((torch.float16, dim, 4, True, 6) for dim in (32, 64, 128)),
    *((torch.bfloat16, dim, 4, True, 6) for dim in (48, 80, 96)),
    *((torch.bfloat16, dim, 4, False, 4) for dim in (64, 80, 128, 256)),
    *((torch.bfloat16, dim, 4, True, 4) for dim in (16, 200, 256)),
    *((torch.bfloat16, dim, 32, True, 2) for dim in (64, 128, 256)),
    *((torch.float32, dim, 4, True, 4) for dim in (64, 80, 128, 256)),
]


def _compile(dtype: torch.dtype, dim: int, group: int, alike: bool) -> Any:
    tiles = tiles_for(dim, dtype)
    constants: dict[str, Any] = {
        "KV_HEADS": 3, "GROUP": group, "DIM": dim, "BLOCK_M": power_of_two(group, least=16),
        "BLOCK_N": tiles.columns, "BLOCK_D": width_of(dim), "ALIKE": alike, "WIDEN": False,
        **dict.fromkeys(("q_dim", "k_dim", "v_dim", "out_dim", "lengths_row"), 1),
    }  # fmt: skip
    types = dict.fromkeys(("q", "keys", "values", "out"), f"*{TYPES[dtype]}")
    types |= {"lengths": "*i32", "scale": "fp32"}
    names = row_attention_kernel.arg_names
    full = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    # What the launcher finds of aligned tensors: pointers and outer strides that 16 divides.
    whole = [["tt.divisibility", 16]]
    attrs = {
        (at,): whole
        for at, name in enumerate(names)
        if full[name].startswith("*") or re.fullmatch(r"(q|k|v|out)_(row|head|column)", name)
    }
    source = ASTSource(row_attention_kernel, full, constexprs=constants, attrs=attrs)
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def _programs(compiled: Any, warps: int, folder: Path) -> int:
    """Programs that a multiprocessor of an H200 holds at once; fails where registers spill."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    told = subprocess.run(
        [tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+).* LOCAL:(\d+)", told)
    assert usage is not None, told
    assert (int(usage[2]), int(usage[3])) == (0, 0), told
    # Registers are given out eight at a time.
    each = -(-int(usage[1]) // 8) * 8 * 32 * warps
    shared = compiled.metadata.shared + RESERVED
    return min(REGISTERS // each, SHARED // shared, WARPS // warps)


def _gate(case: Any, folder: Path) -> None:
    dtype, dim, group, alike, programs = case
    compiled = _compile(dtype, dim, group, alike)
    assert _programs(compiled, tiles_for(dim, dtype).warps, folder) >= programs
    if dtype != torch.float32:
        ptx = compiled.asm["ptx"]
        # Keys and values arrive 16 bytes at a time while the tile before is multiplied.
        assert "cp.async.cg.shared.global" in ptx
        assert "mma.sync" in ptx


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_most_used(case: Any, tmp_path: Path) -> None:
    _gate(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", SHIPPED, ids=str)
def test_all_shipped(case: Any, tmp_path: Path) -> None:
    _gate(case, tmp_path)
