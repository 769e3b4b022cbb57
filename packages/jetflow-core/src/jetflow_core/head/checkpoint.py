"""A head's directory: config.json and safetensors, read without remote code or pickle."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from jetflow_core.head.config import HeadConfig, HeadConfigError
from jetflow_core.head.model import DraftHead
from jetflow_core.head.published import parse_config, write_config
from jetflow_core.head.storage import dequantize_rows, quantize_rows


class HeadLoadError(ValueError):
    """A head's directory cannot be read; the message names the file and what is wrong with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadInfo:
    """What a head says of its own making; every field may be absent in an imported head."""

    target: str | None = None
    """Name of the target it was trained for."""
    tokenizer_sha256: str | None = None
    """Fingerprint of that target's vocabulary (``jetflow_core.fingerprint``)."""
    top1_by_depth: tuple[float, ...] = ()
    """Share of positions at which each depth's best token was the target's, at training time."""
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head with its description and what it says of itself."""

    head: DraftHead
    info: HeadInfo
    path: Path

    @property
    def config(self) -> HeadConfig:
        """The head's description."""
        return self.head.config


def load_head(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: str | torch.device = "cpu"
) -> LoadedHead:
    """A head from its directory, frozen and in evaluation mode.

    Args:
        path: directory with config.json and model.safetensors (or an index of shards).
        dtype: floating type of the weights; 8-bit storage is widened to it.
        device: where the weights go.

    Raises:
        HeadLoadError: a file is missing, cut short, or holds other tensors than the config says.
        HeadConfigError: the config asks for what is not supported.
    """
    folder = Path(path)
    config, info = read_config(folder)
    tensors = dequantize_rows(_read_tensors(folder))
    head = _assemble(config, tensors, folder).to(device=device, dtype=dtype)
    return LoadedHead(head=head.eval().requires_grad_(False), info=info, path=folder)


def read_config(folder: Path) -> tuple[HeadConfig, HeadInfo]:
    """The description and info of the head in ``folder``, without its weights.

    Raises:
        HeadLoadError: no folder, no config.json, or no JSON mapping in it.
        HeadConfigError: see ``parse_config``.
    """
    if not folder.is_dir():
        raise HeadLoadError(f"no head at {folder}: the folder does not exist")
    file = folder / "config.json"
    if not file.is_file():
        raise HeadLoadError(f"no head at {folder}: config.json is missing")
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise HeadLoadError(f"{file} is no JSON: {error}") from error
    if not isinstance(raw, dict):
        raise HeadLoadError(f"{file} holds {type(raw).__name__}, expected a mapping")
    try:
        config = parse_config(raw)
    except HeadConfigError as error:
        raise HeadConfigError(f"{file}: {error}") from error
    return config, _read_info(raw.get("jetflow") or {}, file)


def save_head(
    path: str | Path, head: DraftHead, info: HeadInfo, *, eight_bit: bool = False
) -> Path:
    """Writes ``head`` as a directory that ``load_head`` reads; returns its path.

    The directory appears under its name only once complete, and replaces one that is there.

    Args:
        path: the directory to write.
        head: weights of any floating type; kept in fp32 unless ``eight_bit``.
        info: stored in config.json.
        eight_bit: store matrices as one byte a weight (see ``storage``).

    Raises:
        ValueError: a weight is not finite; nothing is written.
    """
    target = Path(path)
    tensors = {name: tensor.detach().float().cpu().contiguous()
               for name, tensor in head.state_dict().items()}  # fmt: skip
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"refusing to write {target}: {name} holds values that are not finite")
    raw = write_config(head.config)
    raw["jetflow"] |= {
        "target": info.target,
        "tokenizer_sha256": info.tokenizer_sha256,
        "top1_by_depth": list(info.top1_by_depth),
        "provenance": dict(info.provenance),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        save_file(quantize_rows(tensors) if eight_bit else tensors, scratch / "model.safetensors")
        (scratch / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        scratch.chmod(0o755)
        _replace(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _replace(scratch: Path, target: Path) -> None:
    """Puts a finished folder in place; the old one leaves by a rename, so no half is ever seen."""
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
        os.rename(target, old / "head")
        os.rename(scratch, target)
        shutil.rmtree(old)
    else:
        os.rename(scratch, target)


def _read_info(own: Mapping[str, Any], file: Path) -> HeadInfo:
    try:
        return HeadInfo(
            target=own.get("target"),
            tokenizer_sha256=own.get("tokenizer_sha256"),
            top1_by_depth=tuple(float(share) for share in own.get("top1_by_depth") or ()),
            provenance=own.get("provenance") or {},
        )
    except (TypeError, ValueError) as error:
        raise HeadLoadError(f"{file}: the jetflow section cannot be read: {error}") from error


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in _weight_files(folder):
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise HeadLoadError(f"{file} cannot be read: {error}") from error
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise HeadLoadError(f"no head at {folder}: model.safetensors is missing")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (json.JSONDecodeError, KeyError, AttributeError) as error:
        raise HeadLoadError(f"{index} is no index of shards: {error}") from error
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise HeadLoadError(f"{folder} lacks shards that its index names: {', '.join(missing)}")
    return [folder / name for name in names]


def _assemble(config: HeadConfig, tensors: Mapping[str, Tensor], folder: Path) -> DraftHead:
    with torch.device("meta"):
        head = DraftHead(config)
    expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
    missing, extra = (
        sorted(expected.keys() - tensors.keys()),
        sorted(tensors.keys() - expected.keys()),
    )
    if missing or extra:
        raise HeadLoadError(
            f"{folder}: the tensors do not fit the config; missing: {_few(missing)}; "
            f"not supported: {_few(extra)}"
        )
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise HeadLoadError(
                f"{folder}: {name} has shape {tuple(tensors[name].shape)}, the config says {shape}"
            )
        if not torch.isfinite(tensors[name]).all():
            raise HeadLoadError(f"{folder}: {name} holds values that are not finite")
    head.load_state_dict(dict(tensors), strict=True, assign=True)
    return head


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:4]) or "none"
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
