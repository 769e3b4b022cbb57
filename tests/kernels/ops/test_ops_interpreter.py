"""The engine's operations in Triton's interpreter, in a process of their own.

Whether Triton interprets is settled when it is imported, and other tests of this process need it
compiled: so the files `interpreted_*.py` run in one that starts with the switch.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


@pytest.mark.slow
def test_interpreted_operations() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"),
            *("-o", "python_files=interpreted_*.py", "-m", "slow or not slow", str(FOLDER)),
        ],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\d+ (skipped|xfailed)", done.stdout), done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None, done.stdout
    assert int(passed[1]) > 25
