"""Every variant of the product kernel compiles with this machine's nvcc, within gates."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from jetflow_kernels import nvcc
from jetflow_kernels.ops.streamed.variants import (
    SHARED_BYTES,
    SOURCES,
    TYPES,
    VARIANTS,
    Streamed,
    Variant,
    build,
)

REGISTER_FILE = 65536
# What product.cu says of one variant; together they take a fifth of the time.
KERNEL = """
extern "C" __global__ void __launch_bounds__(ProductShape<{rows}, {columns}, {gated}>::THREADS)
{name}(const __grid_constant__ ProductParams p, const __grid_constant__ TensorMap matrix,
       const __grid_constant__ TensorMap rows) {{
  run_product<{element}, ProductShape<{rows}, {columns}, {gated}>>(p, &matrix, &rows);
}}
"""


def _told(tool: str, *arguments: str | Path) -> str:
    from triton.backends import nvidia

    path = Path(nvidia.__file__).parent / "bin" / tool
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def _together(folder: Path) -> Path:
    """One build of all variants."""
    source = folder / "all.cu"
    kernels = (
        KERNEL.format(
            rows=one.rows, columns=one.columns, gated=int(one.gated), name=one.name,
            element=TYPES[one.dtype][1],
        )
        for one in VARIANTS
    )  # fmt: skip
    source.write_text('#include "product.cuh"\n' + "".join(kernels))
    sources = nvcc.Sources(main=source, folders=SOURCES.folders, flags=SOURCES.flags)
    return nvcc.build(folder, sources, "all", ())


def _gate(variant: Variant, usage: str, code: str) -> None:
    config = Streamed(rows=variant.rows, columns=variant.columns, shares=1)
    assert config.shared_bytes <= SHARED_BYTES and config.stages >= 4
    found = re.search(rf"Function {variant.name}:\s+REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    registers, stack = map(int, found.groups())
    assert stack == 0 and registers * config.threads <= REGISTER_FILE
    # A tile's first stage and its further ones, for a program's first tile and those behind it.
    kind = r"\.BF16" if "bf16" in variant.name else ""
    multiplied = re.findall(rf"HGMMA\.64x{variant.rows}x16\.F32{kind} R\d+, gdesc", code)
    assert len(multiplied) == 2 * 2 * 4, variant.name
    # Copies by the engine, sums sent to another program, and eight columns turned into rows.
    assert "UTMALDG.4D" in code and "STAS.128" in code and "MOVM.16.MT88" in code
    # The wait for the kernel ahead, and the barrier of a cluster in producer and consumers.
    assert code.count("ACQBULK") == 1 and code.count("UCGABAR_ARV") == 2
    # No warp waits for the whole device to see its writes; nothing lies in local memory.
    assert not re.search(r"MEMBAR\.ALL\.GPU|\b(LDL|STL|HMMA)\b", code)


@pytest.mark.slow
def test_all_shipped(tmp_path: Path) -> None:
    built = _together(tmp_path)
    report = built.with_suffix(".txt").read_text()
    # Multiplications that ptxas had to put one after the other, and registers on the stack.
    assert "warning" not in report and "C75" not in report, report
    clean = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    assert report.count(clean) == len(VARIANTS)
    usage = _told("cuobjdump", "--dump-resource-usage", built)
    codes = re.split(r"Function : (\w+)", _told("cuobjdump", "-sass", built))[1:]
    by_name = dict(zip(codes[::2], codes[1::2], strict=True))
    assert set(by_name) == {each.name for each in VARIANTS}
    for variant in VARIANTS:
        _gate(variant, usage, by_name[variant.name])


@pytest.mark.slow
def test_a_build_alone_is_the_same_kernel(tmp_path: Path) -> None:
    built = build(tmp_path, VARIANTS[-1])
    code = _told("cuobjdump", "-sass", "-fun", VARIANTS[-1].name, built)
    _gate(VARIANTS[-1], _told("cuobjdump", "--dump-resource-usage", built), code)
