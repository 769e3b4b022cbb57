"""The kernel is built once, in one step, and what is missing is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from jetflow_kernels import nvcc
from jetflow_kernels.attention.k2 import build
from jetflow_kernels.attention.k2.configurations import CONFIGURATIONS

VARIANT = CONFIGURATIONS[0]
FAKE = """#!/bin/sh
echo "$@" >> {log}
if [ "$1" = --version ]; then echo release {version}; exit 0; fi
while [ "$1" != -o ]; do shift; done
echo code > "$2"
exit {status}
"""


def _compiler(folder: Path, version: str = "1", status: int = 0) -> Path:
    compiler = folder / "nvcc"
    compiler.write_text(FAKE.format(log=folder / "log", version=version, status=status))
    compiler.chmod(0o755)
    return compiler


def test_a_build_is_kept_and_another_compiler_makes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: _compiler(tmp_path))
    cache = tmp_path / "cache"
    first = build.build(cache, VARIANT)
    again = build.build(cache, VARIANT)
    assert first == again and first.read_text() == "code\n"
    assert (tmp_path / "log").read_text().count("-cubin") == 1
    assert build.build(cache, CONFIGURATIONS[1]) != first
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: _compiler(tmp_path, version="2"))
    assert build.build(cache, VARIANT) != first
    # Without any compiler, a finished build serves.
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    assert build.build(cache, VARIANT).read_text() == "code\n"


def test_a_failed_build_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: _compiler(tmp_path, status=3))
    cache = tmp_path / "cache"
    with pytest.raises(nvcc.BuildError, match=r"nvcc .* failed with status 3"):
        build.build(cache, VARIANT)
    assert list(cache.iterdir()) == []


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert nvcc.cache_folder() == tmp_path / "jetflow" / "kernels"
    assert "nvcc (CUDA 12.3 or newer) is neither on the PATH" in (build.missing() or "")
    with pytest.raises(nvcc.BuildError, match=r"_m64 cannot be built: nvcc .* no build of these"):
        build.build(tmp_path, VARIANT)


def test_a_compiler_that_cannot_start_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "find_nvcc", lambda: tmp_path / "none")
    with pytest.raises(nvcc.BuildError, match="none could not be started"):
        build.build(tmp_path, VARIANT)
