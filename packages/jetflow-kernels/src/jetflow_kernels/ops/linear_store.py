"""Measured choices in the user's cache folder: one JSON file for each device, type and version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from jetflow_kernels import nvcc, timing
from jetflow_kernels.ops.streamed.variants import SOURCES

FORMAT = "jetflow-products/1"
_SOURCES = ("linear_kernel", "linear_few_kernel", "linear_plan", "linear_launch", "streamed/launch")


def key_of(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """All that a choice depends on beside the product itself, as plain JSON.

    Args:
        device: a CUDA device.
        dtype: of the matrices.
    """
    folder = Path(__file__).parent
    code = b"".join((folder / f"{name}.py").read_bytes() for name in _SOURCES)
    code += SOURCES.key.encode()
    versions = timing.environment()
    return {
        "device": torch.cuda.get_device_name(device),
        "dtype": str(dtype).removeprefix("torch."),
        **{name: versions[name] for name in ("torch", "triton", "cuda")},
        "code": sha256(code).hexdigest()[:16],
        "compiler": nvcc.missing(SOURCES) is None,
    }


def file_of(key: Mapping[str, Any], folder: Path | None = None) -> Path:
    """Where choices under this key lie.

    Args:
        key: from ``key_of``.
        folder: of all such files; None: ``products`` in the user's cache folder.
    """
    digest = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:24]
    return (
        nvcc.cache_folder().parent / "products" if folder is None else folder
    ) / f"{digest}.json"


def stored(file: Path, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines of a file; none where there is no file, or where it is not of this very key."""
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if not isinstance(raw, dict) or raw.get("format") != FORMAT or raw.get("key") != dict(key):
        return []
    lines = raw.get("products")
    return [line for line in lines if isinstance(line, dict)] if isinstance(lines, list) else []


def store(file: Path, key: Mapping[str, Any], lines: list[dict[str, Any]]) -> bool:
    """Writes all lines or none; whether it could be done.

    A machine whose cache folder cannot be written measures again at every start.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        timing.write_json(file, {"format": FORMAT, "key": dict(key), "products": lines})
    except OSError:
        return False
    return True
