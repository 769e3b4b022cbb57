"""mypy finds the operations to be what core's Protocols ask for, and would find it if not."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TYPED = Path(__file__).parent / "typed.py"
WRONG = """
from jetflow_core.rounds import RoundOps
from jetflow_core.stacks import LayerOps
from jetflow_kernels.ops import layer_steps, round_steps

rounds: RoundOps = layer_steps
layers: LayerOps = round_steps
"""


def checked(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_the_operations_are_of_the_types_of_core(tmp_path: Path) -> None:
    right = checked(str(TYPED))
    assert (right.returncode, right.stdout) == (0, ""), right.stdout + right.stderr
    file = tmp_path / "wrong.py"
    file.write_text(WRONG, encoding="utf-8")
    wrong = checked(str(file))
    assert wrong.returncode == 1
    assert wrong.stdout.count("Incompatible types in assignment") == 2, wrong.stdout
