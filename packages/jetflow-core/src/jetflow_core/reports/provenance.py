"""Where a figure comes from: versions, machine, date and arguments."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "triton", "vllm")


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Everything needed to repeat a measurement, ready for JSON.

    Args:
        device: the torch device that was measured. Its name and the thread count are asked of
            torch only if torch is already imported.

    Returns:
        date (UTC), arguments, git (revision and whether files were changed; None outside a
        checkout), packages, python, platform, cpu, cpus, threads, device, device_name.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "arguments": [_without_folder(each) for each in sys.argv],
        "git": _git(),
        "packages": package_versions() | _versions(_LIBRARIES),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpus": _cpus(),
        "threads": _threads(),
        "device": device,
        "device_name": _device_name(device),
    }


def _without_folder(argument: str) -> str:
    """An argument as a report may tell it: where a file lay says nothing about the figure."""
    name, sign, value = argument.rpartition("=")
    return f"{name}{sign}{Path(value).name}" if Path(value).is_absolute() else argument


def package_versions() -> dict[str, str]:
    """Versions of the installed packages of this project, by name."""
    return _versions(
        ("jetflow-tree", "jetflow-core", "jetflow-kernels", "jetflow-train", "jetflow-serve")
    )


def _versions(names: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git() -> dict[str, Any] | None:
    here = Path(__file__).resolve().parent
    # An installed copy may lie inside somebody else's checkout.
    if {"site-packages", "dist-packages"} & set(here.parts):
        return None
    revision = _ask_git(here, "rev-parse", "HEAD")
    if not revision:
        return None
    return {"revision": revision, "changed": bool(_ask_git(here, "status", "--porcelain"))}


def _ask_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _cpus() -> int:
    """CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _threads() -> int | None:
    torch = sys.modules.get("torch")
    return int(torch.get_num_threads()) if torch is not None else None


def _device_name(device: str) -> str | None:
    if device.partition(":")[0] == "cpu":
        return _cpu()
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name(device)) if torch is not None else None
