"""What the package says about itself is what it does."""

import subprocess
import sys

import jetflow_kernels
import torch
from jetflow_kernels import backends


def test_what_is_usable_is_what_can_run() -> None:
    found = {backend.name: backend for backend in backends()}
    assert list(found) == ["reference", "triton", "cuda", "flash"]
    assert found["reference"].usable
    assert found["triton"].usable == torch.cuda.is_available()
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
    assert hopper or not found["cuda"].usable
    assert torch.cuda.is_available() or found["cuda"].detail == "no CUDA device"
    assert torch.cuda.is_available() or not found["flash"].usable
    assert hasattr(jetflow_kernels, "tree_attention")


def test_importing_the_package_imports_no_compiler() -> None:
    names = "{'triton', 'flash_attn', 'cutlass'}"
    code = f"import sys, jetflow_kernels; print({names} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
