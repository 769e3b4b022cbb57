"""Every kernel of a round compiles for sm_90, without a GPU, and keeps to its registers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from jetflow_kernels.round.advance_kernel import advance_kernel
from jetflow_kernels.round.build_bound_kernel import check_and_bound_kernel
from jetflow_kernels.round.build_kernel import best_first_kernel, check_kernel
from jetflow_kernels.round.build_sizes import (
    MOST_SORTED,
    bound_sizes,
    is_swept,
    sweep_sizes,
    tile_sizes,
)
from jetflow_kernels.round.build_sweep_kernel import sweep_kernel
from jetflow_kernels.round.commit_kernel import commit_kernel, slots_kernel
from jetflow_kernels.round.expand_kernel import all_children_kernel
from jetflow_kernels.round.packed_kernel import pack_rows_kernel
from jetflow_kernels.round.path_candidates import warps_of as path_warps
from jetflow_kernels.round.path_kernel import path_kernel
from jetflow_kernels.round.topk import lines_of, warps_of
from jetflow_kernels.round.topk_kernel import (
    narrow_argmax_merge_kernel,
    narrow_argmax_part_kernel,
    narrow_merge_kernel,
    narrow_part_kernel,
)
from jetflow_kernels.round.vocabulary_kernel import (
    argmax_merge_kernel,
    argmax_part_kernel,
    topk_merge_kernel,
    topk_part_kernel,
)
from jetflow_kernels.round.walk_kernel import accept_kernel, pack_kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
BUILD = (
    "tokens:*i32 log_probs:*fp32 good:*i32 records:*i64 stats:*fp64 roots:*i32 budgets:*i32 "
    "root_positions:*i32 "
    "indices:*i32 out_tokens:*i32 out_parents:*i32 out_depths:*i32 out_scores:*fp64 "
    "out_words:*i64 out_positions:*i32 out_nodes:*i32 out_valid:*i1 "
    "capacity:i32 depth:i32 parents:i32 width:i32 num_words:i32"
)
SWEEP = BUILD.replace("records:*i64 stats:*fp64", "scales:*fp64 list_costs:*fp64 list_marks:*i32")
BOUND = (
    "tokens:*i32 log_probs:*fp32 budgets:*i32 good:*i32 scales:*fp64 "
    "capacity:i32 depth:i32 parents:i32 width:i32"
)
CHECK = (
    "tokens:*i32 log_probs:*fp32 good:*i32 records:*i64 stats:*fp64 depth:i32 parents:i32 width:i32"
)
PACK = "parents:*i32 num_nodes:*i32 words:*i64 valid:*i1 capacity:i32 num_words:i32"
ACCEPT = (
    "tokens:*i32 parents:*i32 num_nodes:*i32 picks:*i32 out_rows:*i32 out_tokens:*i32 "
    "out_accepted:*i32 out_correction:*i32 capacity:i32 max_depth:i32"
)
TOPK_PART = (
    "logits:*bf16 part_keys:*i64 part_maxima:*fp32 part_sums:*fp32 stride:i32 vocabulary:i32 "
    "parts:i32 count:i32"
)
TOPK_MERGE = (
    "part_keys:*i64 part_maxima:*fp32 part_sums:*fp32 tokens:*i32 log_probs:*fp32 lse:*fp32 "
    "parts:i32 count:i32"
)
NARROW_PART = TOPK_PART.replace("part_keys:*i64", "part_keys:*i32")
NARROW_MERGE = "logits:*bf16 stride:i32 " + TOPK_MERGE.replace("part_keys:*i64", "part_keys:*i32")
ARGMAX_PART = "logits:*bf16 part_keys:*i64 part_broken:*i32 stride:i32 vocabulary:i32 parts:i32"
SLOTS = (
    "page_table:*i32 prefix_len:*i32 num_nodes:*i32 slots:*i64 table_stride:i32 max_pages:i32 "
    "capacity:i32 page:i32"
)
COMMIT = (
    "addresses:*i64 page_table:*i32 prefix_len:*i32 rows:*i32 features:*bf16 out:*bf16 "
    "pool_programs:i32 pool_blocks:i32 table_stride:i32 steps:i32 columns:i32 page:i32 "
    "page_stride:i32 slot_stride:i32 head_stride:i32 request_stride:i32 row_stride:i32 width:i32"
)
PATHS = (
    "first_tokens:*i32 first:*fp32 pooled:*i32 base:*fp32 bias:*bf16 temperatures:*fp64 "
    "tokens:*i32 table:*fp32 depths:i32 width:i32 pool:i32"
)
PACK_ROWS = (
    "tokens:*i32 positions:*i32 ancestors:*i64 page_table:*i32 prefix_len:*i32 counts:*i32 "
    "out_tokens:*i64 out_positions:*i32 out_slots:*i64 out_ancestors:*i64 out_owners:*i64 "
    "cu_nodes:*i32 places:*i64 table_stride:i32 max_pages:i32 page:i32 requests:i32 capacity:i32 "
    "rows:i32 words:i32 blocks:i32"
)
ADVANCE = (
    "live:*i1 roots:*i32 prefix_len:*i32 remaining:*i32 stops:*i32 record:*i32 rows:*i32 "
    "tokens:*i32 accepted:*i32 correction:*i32 counts:*i32 cu_nodes:*i32 broken:*i1 valid:*i1 "
    "kept_rows:*i32 kept_places:*i64 kept_counts:*i32 stops_stride:i32 record_stride:i32 "
    "num_stops:i32 steps:i32 num_rows:i32"
)
ARGMAX_MERGE = "part_keys:*i64 part_broken:*i32 picks:*i32 broken:*i1 parts:i32"


def compiled(
    kernel: Any, signature: str, warps: int, constants: dict[str, Any], aligned: str = ""
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
            if types.get(name, "").startswith("*") or name in aligned.split()
        },
    )
    return triton.compile(source, target=HOPPER, options={"num_warps": warps})


def check(binary: Any, folder: Path) -> str:
    """Fails where registers spill; returns the PTX."""
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
    assert int(usage[1]) <= 255
    ptx = binary.asm["ptx"]
    assert isinstance(ptx, str)
    return ptx


@pytest.mark.parametrize(
    ("capacity", "depth", "width"),
    [
        (32, 15, 16),
        pytest.param(16, 15, 8, marks=pytest.mark.slow),
        pytest.param(256, 63, 128, marks=pytest.mark.slow),
    ],
)
def test_best_first(tmp_path: Path, capacity: int, depth: int, width: int) -> None:
    assert not is_swept(capacity, depth, width)
    sizes = {**tile_sizes(capacity, depth, width), "SORTED": width <= MOST_SORTED}
    ptx = check(compiled(best_first_kernel, BUILD, 1, sizes), tmp_path)
    # One instruction for the least of a warp's integers is what makes a step short.
    assert ptx.count("redux.sync") >= 10


@pytest.mark.parametrize(
    ("capacity", "depth", "width", "tables"),
    [
        (256, 15, 16, "fp32"),
        pytest.param(64, 15, 16, "fp64", marks=pytest.mark.slow),
        pytest.param(128, 63, 32, "bf16", marks=pytest.mark.slow),
    ],
)
def test_sweep(tmp_path: Path, capacity: int, depth: int, width: int, tables: str) -> None:
    assert is_swept(capacity, depth, width)
    signature = SWEEP.replace("log_probs:*fp32", f"log_probs:*{tables}")
    check(compiled(sweep_kernel, signature, 8, sweep_sizes(capacity, depth, width)), tmp_path)


@pytest.mark.parametrize(
    ("parents", "width"), [(16, 16), (1, 16), pytest.param(32, 32, marks=pytest.mark.slow)]
)
def test_bound_before_a_sweep(tmp_path: Path, parents: int, width: int) -> None:
    sizes = bound_sizes(15, parents, width)
    check(compiled(check_and_bound_kernel, BOUND, 8, sizes), tmp_path)


@pytest.mark.parametrize("capacity", [64, pytest.param(256, marks=pytest.mark.slow)])
def test_all_children(tmp_path: Path, capacity: int) -> None:
    signature = BUILD.replace("records:*i64 stats:*fp64 ", "") + " children:i32"
    check(compiled(all_children_kernel, signature, 1, tile_sizes(capacity, 15, 16)), tmp_path)


@pytest.mark.parametrize(
    ("kernel", "signature", "warps", "constants"),
    [
        (check_kernel, CHECK, 1, {"WIDTH": 16, "PARENTS": 16, "SORTED": True}),
        (check_kernel, CHECK, 4, {"WIDTH": 32, "PARENTS": 1, "SORTED": True}),
        (check_kernel, CHECK, 4, {"WIDTH": 128, "PARENTS": 128, "SORTED": False}),
        (pack_kernel, PACK.replace("i32 ", "i64 "), 4, {"SLOTS": 256, "COLUMNS": 4}),
        (pack_kernel, PACK, 4, {"SLOTS": 256, "COLUMNS": 4}),
        (
            accept_kernel,
            ACCEPT.replace("tokens:*i32", "tokens:*i64"),
            1,
            {"SLOTS": 64, "STEPS": 16},
        ),
        (accept_kernel, ACCEPT, 1, {"SLOTS": 256, "STEPS": 16}),
        (topk_merge_kernel, TOPK_MERGE, 4, {"PARTS": 64, "KEYS": 1024}),
        (slots_kernel, SLOTS, 1, {"SLOTS": 256}),
        (argmax_merge_kernel, ARGMAX_MERGE, 1, {"PARTS": 64}),
        (pack_rows_kernel, PACK_ROWS, 1, {"REQUESTS": 1, "ROWS": 32, "SLOTS": 64}),
        (pack_rows_kernel, PACK_ROWS, 4, {"REQUESTS": 256, "ROWS": 32, "SLOTS": 256}),
        (advance_kernel, ADVANCE, 1, {"STEPS": 16, "STOPS": 16}),
        (advance_kernel, ADVANCE, 1, {"STEPS": 64, "STOPS": 16}),
        (path_kernel, PATHS, path_warps(16, 64), {"WIDTH": 16, "POOL": 64}),
        (path_kernel, PATHS, path_warps(32, 128), {"WIDTH": 32, "POOL": 128}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_others(
    tmp_path: Path, kernel: Any, signature: str, warps: int, constants: dict[str, int]
) -> None:
    check(compiled(kernel, signature, warps, constants), tmp_path)


@pytest.mark.parametrize("steps", [16, pytest.param(64, marks=pytest.mark.slow)])
def test_commit(tmp_path: Path, steps: int) -> None:
    constants = {"ELEMENT": tl.int16, "HEAD_DIM": 128, "STEPS": steps, "BLOCK": 512}
    strides = "columns page_stride slot_stride head_stride request_stride row_stride width"
    ptx = check(compiled(commit_kernel, COMMIT, 4, constants, strides), tmp_path)
    # Cache rows and features both move 16 bytes at a time, reads before writes.
    wide = steps * 512 // 128 // 8
    assert ptx.count("ld.global.v4") == ptx.count("st.global.v4") == 2 * wide
    lines = ptx.splitlines()
    fences = [i for i, line in enumerate(lines) if "bar.sync" in line]
    reads = [i for i, line in enumerate(lines) if "ld.global.v4" in line]
    writes = [i for i, line in enumerate(lines) if "st.global.v4" in line]
    assert len(fences) == 1
    assert sum(i < fences[0] for i in reads) == wide
    assert sum(i < fences[0] for i in writes) == 0


@pytest.mark.parametrize(
    ("logits", "size"),
    [
        ("bf16", 2048),
        pytest.param("fp16", 2048, marks=pytest.mark.slow),
        pytest.param("bf16", 16384, marks=pytest.mark.slow),
        pytest.param("fp16", 32, marks=pytest.mark.slow),
    ],
)
def test_parts_of_16_bit_logits(tmp_path: Path, logits: str, size: int) -> None:
    signature = NARROW_PART.replace("bf16", logits)
    for aligned in ("stride vocabulary", ""):
        binary = compiled(narrow_part_kernel, signature, warps_of(size), lines_of(size), aligned)
        ptx = check(binary, tmp_path)
        if aligned and size >= 2048:
            assert ptx.count("ld.global.v4") == size // 8 // 32 // warps_of(size)
        # One instruction finds the greatest key of a warp: before the loop and in it.
        assert ptx.count("redux.sync") == 2


def test_picks_of_16_bit_logits(tmp_path: Path) -> None:
    wide, narrow = "part_keys:*i64", "part_keys:*i32"
    ptx = check(
        compiled(
            narrow_argmax_part_kernel, ARGMAX_PART.replace(wide, narrow), 1, lines_of(2048),
            "stride vocabulary",
        ),
        tmp_path,
    )  # fmt: skip
    assert ptx.count("ld.global.v4") == 8
    assert "bar.sync" not in ptx
    sizes = {"PART": 2048, "PARTS": 128}
    merge = ARGMAX_MERGE.replace(wide, narrow)
    check(compiled(narrow_argmax_merge_kernel, merge, 1, sizes), tmp_path)


@pytest.mark.parametrize(
    ("count", "keys"), [(16, 2048), pytest.param(128, 8192, marks=pytest.mark.slow)]
)
def test_merge_of_16_bit_logits(tmp_path: Path, count: int, keys: int) -> None:
    sizes = {"PART": 2048, "PARTS": 128, "COUNT": count, **lines_of(keys)}
    check(compiled(narrow_merge_kernel, NARROW_MERGE, warps_of(keys), sizes), tmp_path)


@pytest.mark.parametrize(
    ("kernel", "signature"), [(topk_part_kernel, TOPK_PART), (argmax_part_kernel, ARGMAX_PART)]
)
@pytest.mark.parametrize("logits", ["bf16", "fp32"])
def test_logits_are_read_16_bytes_at_a_time(
    tmp_path: Path, kernel: Any, signature: str, logits: str
) -> None:
    signature = signature.replace("bf16", logits)
    ptx = check(compiled(kernel, signature, 4, {"PART": 4096}, "stride vocabulary"), tmp_path)
    assert ptx.count("ld.global.v4") == 4096 // 128 // (8 if logits == "bf16" else 4)
    # A vocabulary that no vector divides compiles too.
    check(compiled(kernel, signature, 4, {"PART": 4096}), tmp_path)


def test_int64_tokens_and_float64_tables(tmp_path: Path) -> None:
    signature = (
        BUILD.replace("tokens:*i32", "tokens:*i64")
        .replace("roots:*i32", "roots:*i64")
        .replace("budgets:*i32", "budgets:*i64")
        .replace("positions:*i32", "positions:*i64")
        .replace("log_probs:*fp32", "log_probs:*fp64")
    )
    sizes = {**tile_sizes(32, 15, 16), "SORTED": True}
    check(compiled(best_first_kernel, signature, 1, sizes), tmp_path)
