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
# Type, head dim, rows, page, query heads of a key head, equal strides of keys and values.
SHIPPED = [
    *product((torch.bfloat16, torch.float16), (64, 128), (1, 256), (16, 64, 256), (4,), (True,)),
    *product((torch.bfloat16,), (128,), (1, 256), (16, 128), (1, 2, 3, 8, 16), (True,)),
    *product((torch.bfloat16,), (64, 128), (1, 256), (16, 128), (4,), (False,)),
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
        "BY_PAGE": tiles.by_page and page % tiles.columns == 0, **dict.fromkeys(LAST_STRIDES, 1),
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
    }
    strides = dict.fromkeys(("cu_stride", "prefix_stride", "out_dim", "lse_head"), 1)
    compiled = _compile(
        merge_kernel, {**POINTERS, "out": "*bf16"}, {**constants, **strides}, num_warps=1
    )
    assert _stack_bytes(compiled, tmp_path) == 0
