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
from safetensors.torch import save_file
from torch import Tensor

from jetflow_core.head.config import HeadConfig
from jetflow_core.head.folder import (
    CONFIG,
    WEIGHTS,
    HeadLoadError,
    check_replaceable,
    read_json,
    read_tensors,
)
from jetflow_core.head.model import DraftHead
from jetflow_core.head.published import own_section, parse_config, write_config
from jetflow_core.head.storage import FLOATING, quantize_rows
from jetflow_core.head.values import HeadConfigError, listed, mapping, real, text

__all__ = ["HeadInfo", "HeadLoadError", "LoadedHead", "load_head", "read_config", "save_head"]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadInfo:
    """What a head says of its own making; every field may be absent in an imported head.

    Raises:
        HeadConfigError: on construction, naming a field that is of the wrong kind or out of range.
    """

    target: str | None = None
    """Name of the target it was trained for."""
    tokenizer_sha256: str | None = None
    """Fingerprint of that target's vocabulary (``jetflow_core.fingerprint``)."""
    top1_by_depth: tuple[float, ...] = ()
    """Share of positions at which each depth's best token was the target's, at training time."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    thinking: bool | None = None
    """Whether its target thought aloud in the texts it learnt from; None: not known, or both."""

    def __post_init__(self) -> None:
        for name in ("target", "tokenizer_sha256"):
            if getattr(self, name) is not None:
                text(name, getattr(self, name))
        for share in listed("top1_by_depth", self.top1_by_depth):
            real("top1_by_depth: each", share, 0.0, 1.0)
        mapping("provenance", self.provenance)
        if self.thinking is not None and not isinstance(self.thinking, bool):
            raise HeadConfigError(f"thinking must be true, false or null, got {self.thinking!r}")


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
        HeadLoadError: a file is missing, cut short, or holds other tensors than the config says,
            or a weight is not finite, as it is stored or in ``dtype``.
        HeadConfigError: the config asks for what is not supported.
        ValueError: ``dtype`` is not one of those that weights have.
    """
    if dtype not in FLOATING:
        raise ValueError(f"dtype {dtype} is not one of {', '.join(map(str, FLOATING))}")
    folder = Path(path)
    config, info = read_config(folder)
    head = _assemble(config, read_tensors(folder), folder).to(device=device, dtype=dtype)
    _check_finite(head.state_dict(), f"{folder}: as {dtype}")
    return LoadedHead(head=head.eval().requires_grad_(False), info=info, path=folder)


def read_config(folder: Path) -> tuple[HeadConfig, HeadInfo]:
    """The description and info of the head in ``folder``, without its weights.

    Raises:
        HeadLoadError: no folder, no config.json, or no JSON mapping in it.
        HeadConfigError: see ``parse_config``.
    """
    if not folder.is_dir():
        raise HeadLoadError(f"no head at {folder}: the folder does not exist")
    file = folder / CONFIG
    if not file.is_file():
        raise HeadLoadError(f"no head at {folder}: {CONFIG} is missing")
    raw = read_json(file)
    try:
        return parse_config(raw), _info(own_section(raw))
    except HeadConfigError as error:
        raise HeadConfigError(f"{file}: {error}") from error


def save_head(
    path: str | Path, head: DraftHead, info: HeadInfo, *, eight_bit: bool = False
) -> Path:
    """Writes ``head`` as a directory that ``load_head`` reads; returns its path.

    The directory appears under its name only once complete, and replaces a head that is there;
    it never replaces anything else.

    Args:
        path: the directory to write.
        head: weights of any floating type; kept in fp32 unless ``eight_bit``.
        info: stored in config.json.
        eight_bit: store matrices as one byte a weight (see ``storage``).

    Raises:
        ValueError: a weight is not finite, or something else than a head is at
            ``path``; nothing is written and nothing is lost.
    """
    target = Path(path)
    check_replaceable(target)
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
        **({} if info.thinking is None else {"thinking": info.thinking}),
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        save_file(quantize_rows(tensors) if eight_bit else tensors, scratch / WEIGHTS)
        (scratch / CONFIG).write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
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


def _info(own: Mapping[str, Any]) -> HeadInfo:
    return HeadInfo(
        target=own.get("target"),
        tokenizer_sha256=own.get("tokenizer_sha256"),
        top1_by_depth=listed("top1_by_depth", own.get("top1_by_depth", ())),
        provenance=own.get("provenance", {}),
        thinking=own.get("thinking"),
    )


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
    _check_finite(tensors, str(folder))
    head.load_state_dict(dict(tensors), strict=True, assign=True)
    return head


def _check_finite(tensors: Mapping[str, Tensor], where: str) -> None:
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise HeadLoadError(f"{where}: {name} holds values that are not finite")


def _few(names: list[str]) -> str:
    shown = ", ".join(names[:4]) or "none"
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"
