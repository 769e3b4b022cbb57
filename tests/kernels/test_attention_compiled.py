"""Every shipped configuration compiles for sm_90 without a GPU, within gates."""

import re
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_kernels.attention import plan

SHARED_LIMIT = 227 * 1024
# Float32 is there to check with, not to serve with; ptxas keeps a few words of it on the stack.
STACK_LIMIT = {torch.float16: 0, torch.bfloat16: 0, torch.float32: 40}
TYPES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
POINTERS = {
    **dict.fromkeys(("page_table", "cu_nodes", "prefix_len"), "*i32"),
    **dict.fromkeys(("lse", "partial", "partial_lse"), "*fp32"),
    "ancestors": "*i64",
}
LAST_STRIDES = (
    "q_dim", "k_dim", "v_dim", "out_dim", "table_entry", "cu_stride", "prefix_stride",
    "words_word", "lse_head",
)  # fmt: skip
# Every two of these values occur together: each of them is a choice of the kernel by itself.
FP16 = [(64, 1, 16), (128, 256, 16), (64, 256, 64), (128, 1, 64), (64, 1, 256), (128, 256, 256)]
GROUPS = [
    (rows, page, group)
    for at, group in enumerate((1, 2, 3, 8, 16))
    for rows, page in (((1, 16), (256, 128)), ((1, 128), (256, 16)))[at % 2]
]
NOT_ALIKE = [(64, 1, 16), (64, 256, 128), (128, 1, 128), (128, 256, 16)]
# Type, head dim, rows, page, query heads of a key head, equal strides of keys and values.
SHIPPED = [
    *product((torch.bfloat16,), (64, 128), (1, 256), (16, 64, 256), (4,), (True,)),
    *((torch.float16, *case, 4, True) for case in FP16),
    *((torch.bfloat16, 128, *case, True) for case in GROUPS),
    *((torch.bfloat16, *case, 4, False) for case in NOT_ALIKE),
    *product((torch.bfloat16,), (256,), (256,), (16, 128), (2,), (True, False)),
    *product((torch.float32,), (64, 128, 256), (256,), (16, 64), (4,), (True,)),
]
QUICK = [
    (torch.bfloat16, 128, 1, 16, 4, True),
    (torch.bfloat16, 128, 256, 128, 4, True),
    (torch.float16, 64, 256, 64, 4, True),
    (torch.float32, 64, 256, 16, 4, True),
]


def _compile(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], **options: int
) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    full = {
        name: "constexpr" if name in constants else signature.get(name, "i32") for name in names
    }
    # What the launcher finds of aligned tensors: pointers and outer strides that 16 divides.
    whole = [["tt.divisibility", 16]]
    attrs = {
        (at,): whole
        for at, name in enumerate(names)
        if full[name].startswith("*") or re.fullmatch(r"(q|k|v|out)_(row|head|page|slot)", name)
    }
    source = ASTSource(fn=kernel, signature=full, constexprs=constants, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def _attention(
    dtype: torch.dtype, dim: int, rows: int, page: int, group: int, alike: bool
) -> tuple[Any, plan.Tiles]:
    from jetflow_kernels.attention.k1 import tree_attention_kernel

    tiles = plan.tiles_for(rows, 1, group, dim, dtype)
    pools = dict.fromkeys(("q", "k_pool", "v_pool", "out"), f"*{TYPES[dtype]}")
    constants: dict[str, Any] = {
        "HEADS": 8 * group, "GROUP": group, "DIM": dim, "PAGE": page, "WORDS": 4, "REQUESTS": 1,
        "BLOCK_M": tiles.rows, "BLOCK_N": tiles.columns, "ALIKE": alike, "WIDEN": False,
        "WORK": plan.SPLIT_WORK, "SHORTEST": plan.MIN_CHUNK,
        "NEGATIVE": False, "OVERLAPPED": False,
        "BY_PAGE": tiles.looks_up(page), **dict.fromkeys(LAST_STRIDES, 1),
    }  # fmt: skip
    compiled = _compile(
        tree_attention_kernel,
        {**POINTERS, **pools, "scale": "fp32"},
        constants,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return compiled, tiles


def _stack_bytes(compiled: Any, folder: Path) -> int:
    """Bytes of stack that ptxas gave the kernel: registers that did not fit."""
    from triton.backends import nvidia

    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
    told = subprocess.run(
        [tool, "--dump-resource-usage", cubin], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"STACK:(\d+)", told)
    assert found is not None, told
    return int(found[1])


def _gate(case: Any, folder: Path) -> None:
    compiled, tiles = _attention(*case)
    assert compiled.metadata.shared <= SHARED_LIMIT // tiles.programs
    assert _stack_bytes(compiled, folder) <= STACK_LIMIT[case[0]]
    if case[0] != torch.float32:
        assert "wgmma.mma_async" in compiled.asm["ptx"]
        assert "mma.sync" not in compiled.asm["ptx"]
        assert "cp.async.cg" in compiled.asm["ptx"]


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_most_used(case: Any, tmp_path: Path) -> None:
    _gate(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in SHIPPED if case not in QUICK], ids=str)
def test_all_shipped(case: Any, tmp_path: Path) -> None:
    _gate(case, tmp_path)


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_merge(dim: int, tmp_path: Path) -> None:
    from jetflow_kernels.attention.merge import merge_kernel

    constants = {
        "HEADS": 32,
        "DIM": dim,
        "REQUESTS": 4,
        "BLOCK_S": 8,
        "WORK": plan.SPLIT_WORK,
        "SHORTEST": plan.MIN_CHUNK,
        "OVERLAPPED": False,
    }
    strides = dict.fromkeys(("cu_stride", "prefix_stride", "out_dim", "lse_head"), 1)
    compiled = _compile(
        merge_kernel, {**POINTERS, "out": "*bf16"}, {**constants, **strides}, num_warps=1
    )
    assert _stack_bytes(compiled, tmp_path) == 0


def _apart(apart: Any, requests: int) -> tuple[Any, Any]:
    """Both kernels of a call in two, in bfloat16 for heads of 128 in groups of four."""
    from jetflow_kernels.attention.prefix import prefix_kernel
    from jetflow_kernels.attention.tail import tail_kernel

    both: dict[str, Any] = {
        "HEADS": 32, "GROUP": 4, "DIM": 128, "PAGE": 128, "REQUESTS": requests,
        "OVERLAPPED": apart.overlapped, "WIDEN": False, "NEGATIVE": False,
        **dict.fromkeys(LAST_STRIDES, 1),
    }  # fmt: skip
    pools = dict.fromkeys(("q", "k_pool", "v_pool", "out"), "*bf16")
    box = f"tensordesc<bf16[{apart.columns}, 128]>"
    boxes = {"k_box": box, "v_box": box}
    first = {
        "BLOCK_M": apart.rows, "BLOCK_N": apart.columns, "STAGES": apart.stages,
        "SPECIALIZED": apart.specialized,
    }  # fmt: skip
    second = {
        "BLOCK_M": apart.tail_rows, "BLOCK_N": apart.tail_columns, "BLOCK_P": apart.columns,
        "UNROLLED": 4, "ALIKE": True,
    }  # fmt: skip
    prefix = _compile(
        prefix_kernel, {**POINTERS, **pools, **boxes, "scale": "fp32"},
        _of(prefix_kernel, both, first),
        num_warps=apart.warps, num_stages=apart.stages, launch_pdl=apart.overlapped,
    )  # fmt: skip
    tail = _compile(
        tail_kernel, {**POINTERS, **pools, "scale": "fp32"}, _of(tail_kernel, both, second),
        num_warps=apart.tail_warps, num_stages=apart.tail_stages, launch_pdl=apart.overlapped,
    )  # fmt: skip
    return prefix, tail


def _of(kernel: Any, *constants: dict[str, Any]) -> dict[str, Any]:
    """Those that the kernel has."""
    return {
        name: value
        for each in constants
        for name, value in each.items()
        if name in kernel.arg_names
    }


def _gate_apart(requests: int, folder: Path, **sizes: Any) -> None:
    from jetflow_kernels.attention.apart import Apart

    apart = Apart(**sizes)
    prefix, tail = _apart(apart, requests)
    assert prefix.metadata.shared <= SHARED_LIMIT // apart.programs
    assert _stack_bytes(prefix, folder) == 0 == _stack_bytes(tail, folder)
    code = prefix.asm["ptx"]
    assert "wgmma.mma_async" in code and "cp.async.bulk.tensor" in code and "mma.sync" not in code
    # The compiler drops what it was asked for without a word where a kernel does not suit it.
    assert ("setmaxnreg" in code) == apart.specialized
    assert (prefix.metadata.num_warps == 12) == apart.specialized
    # Rows of q that were loaded reach the tensor cores from shared memory, not by registers again
    # at each tile.
    assert ("ldmatrix" in code) == apart.specialized
    for each in (prefix, tail):
        assert ("griddepcontrol.wait" in each.asm["ptx"]) == apart.overlapped


WARPS_OF_THEIR_OWN = {
    "rows": 128, "columns": 128, "warps": 4, "stages": 2, "programs": 1, "specialized": True
}  # fmt: skip


@pytest.mark.slow
def test_apart_with_warps_for_copies(tmp_path: Path) -> None:
    _gate_apart(1, tmp_path, **WARPS_OF_THEIR_OWN, overlapped=True)


@pytest.mark.slow
@pytest.mark.parametrize("requests", [1, 32])
@pytest.mark.parametrize(
    "sizes",
    [
        {**WARPS_OF_THEIR_OWN, "columns": 64, "stages": 3},
        {**WARPS_OF_THEIR_OWN, "tail_rows": 16},
        {**WARPS_OF_THEIR_OWN, "warps": 8, "specialized": False},
        {**WARPS_OF_THEIR_OWN, "columns": 64, "warps": 8, "stages": 3, "specialized": False},
        {
            **WARPS_OF_THEIR_OWN, "rows": 64, "columns": 64, "stages": 3, "programs": 2,
            "specialized": False,
        },
    ],
    ids=str,
)  # fmt: skip
def test_apart(requests: int, sizes: Any, tmp_path: Path) -> None:
    _gate_apart(requests, tmp_path, **sizes)
