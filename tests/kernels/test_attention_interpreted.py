"""Runs the checks of ``interpreted/`` where Triton interprets its kernels on the CPU.

Triton decides when it is imported, so they need a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).parent / "interpreted"


def _run(*options: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n0", "-q", "-p", "no:cacheprovider", *options],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    # Nothing collected and nothing run are failures too.
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_all_checks() -> None:
    # In one process: each would import torch and Triton anew.
    files = (str(CHECKS / name) for name in ("values.py", "isolation.py", "rows.py", "apart.py"))
    _run("-m", "slow or not slow", *files)
