"""The files of a head's directory: JSON and safetensors, and nothing outside of the directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from jetflow_core.head.published import names_a_head
from jetflow_core.head.storage import StorageError, dequantize_rows
from jetflow_core.head.values import HeadConfigError, mapping, shown, text

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


class HeadLoadError(ValueError):
    """A head's directory cannot be read; the message names the file and what is wrong with it."""


def read_json(file: Path) -> Mapping[str, Any]:
    """The mapping in a JSON file.

    Raises:
        HeadLoadError: it cannot be read, is no JSON, or holds something else.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise HeadLoadError(f"{file} cannot be read: {error}") from error
    # RecursionError: nested too deeply; ValueError: also bytes that are no UTF-8, and whole
    # numbers of more digits than Python takes.
    except (ValueError, RecursionError) as error:
        raise HeadLoadError(f"{file} is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise HeadLoadError(f"{file} holds {type(raw).__name__}, expected a mapping")
    return raw


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of the head in ``folder`` by name, 8-bit storage widened to fp32.

    Raises:
        HeadLoadError: a file is missing or cut short, two hold the same tensor, or a tensor is of
            a type that stands for no weights.
    """
    stored: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            found = load_file(file)
        except (SafetensorError, OSError) as error:
            raise HeadLoadError(f"{file} cannot be read: {error}") from error
        twice = sorted(found.keys() & stored.keys())
        if twice:
            raise HeadLoadError(f"{file} holds {twice[0]}, which another shard holds too")
        stored |= found
    try:
        return dequantize_rows(stored)
    except StorageError as error:
        raise HeadLoadError(f"{folder}: {error}") from error


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / WEIGHTS, folder / INDEX
    if single.is_file():
        return [single]
    if not index.is_file():
        raise HeadLoadError(f"no head at {folder}: {WEIGHTS} is missing")
    try:
        shards = mapping("weight_map", read_json(index).get("weight_map"))
        names = sorted({text(f"weight_map: {shown(key)}", name) for key, name in shards.items()})
    except HeadConfigError as error:
        raise HeadLoadError(f"{index} is no index of shards: {error}") from error
    outside = [name for name in names if "/" in name or "\\" in name or name in ("", ".", "..")]
    if outside:
        raise HeadLoadError(
            f"{index} names {shown(outside[0])}; a shard is a file in the same folder"
        )
    # Looked up in the listing: a name may be one that no file system takes.
    there = {file.name for file in folder.iterdir() if file.is_file()}
    missing = [name for name in names if name not in there]
    if missing:
        raise HeadLoadError(
            f"{folder} lacks shards that its index names: {', '.join(map(shown, missing[:4]))}"
        )
    return [folder / name for name in names]


def check_replaceable(target: Path) -> None:
    """Refuses a path where a new head would take the place of anything but a head.

    Raises:
        ValueError: a file is there, or a folder that is neither empty nor a head's; the message
            names what is there.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise ValueError(f"refusing to write a head to {target}: a file is there")
    names = sorted(file.name for file in target.iterdir())
    if not names:
        return
    if not _holds_a_head(target):
        raise ValueError(
            f"refusing to write a head to {target}: the folder is no head's; it holds {_few(names)}"
        )
    foreign = [name for name in names if not _is_a_heads(name)]
    if foreign:
        raise ValueError(
            f"refusing to replace the head at {target}: the folder also holds {_few(foreign)}"
        )


def _holds_a_head(folder: Path) -> bool:
    try:
        return names_a_head(read_json(folder / CONFIG))
    except (HeadLoadError, HeadConfigError):
        return False


def _is_a_heads(name: str) -> bool:
    return name in (CONFIG, INDEX) or name.endswith(".safetensors")


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
