"""What the package says about itself is what it does."""

import subprocess
import sys

import jetflow_kernels
import torch
from jetflow_kernels import backends


def test_what_is_usable_is_what_can_run() -> None:
    found = {backend.name: backend for backend in backends()}
    assert list(found) == ["reference", "triton", "sm90"]
    assert found["reference"].usable
    assert found["triton"].usable == torch.cuda.is_available()
    assert not found["sm90"].usable
    assert "not part of this version" in found["sm90"].detail
    assert hasattr(jetflow_kernels, "tree_attention")


def test_importing_the_package_imports_no_triton() -> None:
    code = "import sys, jetflow_kernels; print('triton' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
