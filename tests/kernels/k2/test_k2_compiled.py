"""Every variant of the sm_90a kernel compiles with this machine's nvcc, within gates."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from jetflow_kernels.attention.k2 import build
from jetflow_kernels.attention.k2.configurations import (
    CONFIGURATIONS,
    SWIFT_CONFIGURATIONS,
    Configuration,
)

SHARED_LIMIT = 227 * 1024
SHARED_OF_MULTIPROCESSOR = 228 * 1024
# What the system keeps of each program's shared memory.
RESERVED = 1024
REGISTER_FILE = 65536


def _told(tool: str, *arguments: str | Path) -> str:
    from triton.backends import nvidia

    path = Path(nvidia.__file__).parent / "bin" / tool
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=True).stdout


def _multiplications(code: str, columns: int, inputs: str) -> int:
    return len(re.findall(rf"HGMMA\.64x{columns}x16\.F32(?:\.BF16)? R\d+, {inputs}", code))


def _gate(variant: Configuration, folder: Path) -> None:
    built = build.build(folder, variant)
    report = built.with_suffix(".txt").read_text()
    # Multiplications that ptxas had to put one after the other, and registers on the stack.
    assert "warning" not in report and "C75" not in report, report
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    assert variant.shared_bytes <= SHARED_LIMIT
    assert variant.programs * (variant.shared_bytes + RESERVED) <= SHARED_OF_MULTIPROCESSOR
    told = _told("cuobjdump", "--dump-resource-usage", built)
    found = re.search(rf"Function {variant.name}:\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", told)
    assert found is not None, told
    registers, stack, static = map(int, found.groups())
    assert (stack, static) == (0, RESERVED)
    assert registers * variant.threads * variant.programs <= REGISTER_FILE
    code = _told("cuobjdump", "-sass", "-fun", variant.name, built)
    # Scores of a first tile, of further ones with and without a mask, and their sums; where tiles
    # have 128 columns, half a tile too, alone and beside the sums of a whole one.
    narrow = variant.columns == 128
    assert _multiplications(code, variant.columns, r"gdesc") == 3 * variant.dim // 16
    if narrow:
        assert _multiplications(code, 64, r"gdesc") == 2 * variant.dim // 16
    steps = (3 + narrow) * variant.columns // 16 + (4 if narrow else 0)
    assert _multiplications(code, variant.dim, r"R\d+, gdesc\[UR\d+\]\.tnspB") == steps
    # Exponentials are taken while sums are under way: between the wait for scores and theirs.
    overlaps = re.findall(r"DEPBAR\.LE gsb0, 0x1(.*?)DEPBAR\.LE gsb0, 0x0", code, re.DOTALL)
    taken = [part.count("MUFU.EX2") for part in overlaps]
    assert len(taken) == 2 + narrow and min(taken) >= 32, taken
    assert sum(count >= variant.columns // 2 for count in taken) >= 2, taken
    assert (".F32.BF16" in code) == ("bf16" in variant.name)
    assert "UTMALDG.4D" in code and "LDGSTS" in code and "USETMAXREG" in code
    # The barrier of a cluster, in producer and consumers, and the wait for the kernel ahead.
    assert code.count("UCGABAR_ARV") == code.count("UCGABAR_WAIT") == 2
    assert code.count("ACQBULK") == 1
    if variant.swift:
        # Queries and lengths are asked for before anybody waits for anybody.
        begun = code[code.index("ACQBULK") : code.index("BAR.SYNC")]
        assert "UTMALDG.4D" in begun and len(re.findall(r"\bLDG\.E\b", begun)) == 3
    # Nothing is read or copied before the kernel ahead has ended.
    assert not re.search(r"\b(LDG|UTMALDG|LDGSTS)\b", code[: code.index("ACQBULK")])
    # A slab is sent 16 bytes at a time, and no warp waits for the whole device to see its writes.
    parts = variant.dim // 32
    assert code.count("STAS.128") == variant.dim // 8 + (parts if variant.swift else 1)
    assert "MEMBAR.ALL.GPU" not in code
    # A swift kernel stores part by part where programs put them together.
    assert code.count("STG.E.128") == 2 * (parts + variant.swift)
    # Exchanges of lanes in code that only some of them may reach take a slow way.
    assert "COLLECTIVE" not in code
    # Only builds with a clock note the time.
    assert "GLOBALTIMER" not in code
    # Nothing left in local memory, and no multiplication on the older path.
    assert not re.search(r"\b(LDL|STL|HMMA)\b", code)


@pytest.mark.slow
@pytest.mark.parametrize("variant", CONFIGURATIONS, ids=lambda variant: variant.name)
def test_all_shipped(variant: Configuration, tmp_path: Path) -> None:
    _gate(variant, tmp_path)


# Either type with either number of rows and either head dim; CI has no time for all.
@pytest.mark.slow
@pytest.mark.parametrize(
    "variant", (*SWIFT_CONFIGURATIONS[:2], *SWIFT_CONFIGURATIONS[-2:]), ids=lambda one: one.name
)
def test_swift_ones(variant: Configuration, tmp_path: Path) -> None:
    _gate(variant, tmp_path)


@pytest.mark.slow
def test_the_clock_costs_no_registers_on_the_stack(tmp_path: Path) -> None:
    variant = next(one for one in CONFIGURATIONS if (one.dim, one.rows) == (128, 128))
    built = build.build(tmp_path, variant, ("KERNEL_CLOCK",))
    assert built.parent == tmp_path / "KERNEL_CLOCK"
    report = built.with_suffix(".txt").read_text()
    assert "warning" not in report and "C75" not in report, report
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in report
    code = _told("cuobjdump", "-sass", "-fun", variant.name, built)
    assert "GLOBALTIMER" in code
