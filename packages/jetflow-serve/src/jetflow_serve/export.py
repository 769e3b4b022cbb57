"""A head in the layout of vLLM's own method ``dflash``, so that stock vLLM drafts chains with it.

vLLM reads Qwen3-shaped layers, ``fc``, ``hidden_norm`` and ``norm``; embeddings and lm_head are the
target's. Whether the block is causal it decides by ``dflash_config.causal`` alone: without that
key it runs a head bidirectionally and says nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from jetflow_core.head.checkpoint import LoadedHead, load_head
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.published import write_config
from safetensors.torch import save_file

ARCHITECTURE = "DFlashDraftModel"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class NotExportable(ValueError):
    """vLLM's ``dflash`` cannot run this head; the message names every reason."""


def export_for_vllm(head_dir: str | Path, out_dir: str | Path, *, dtype: str = "float32") -> Path:
    """Writes a head's directory as one that vLLM's method ``dflash`` loads; returns its path.

    Args:
        head_dir: a head that ``jetflow_core.head`` reads: ours or a published one.
        out_dir: the directory to write; it must not exist. It appears only once complete.
        dtype: type of the stored weights: float32, bfloat16 or float16. vLLM converts them to
            the target's type when it loads them.

    Raises:
        NotExportable: the head has parts that vLLM's ``dflash`` would not run.
        HeadLoadError: the head cannot be read.
        ValueError: ``out_dir`` exists, or ``dtype`` is not one of the three.

    Examples:
        ``export_for_vllm("my-head", "my-head-vllm")``, then ``vllm serve TARGET
        --speculative-config '{"method": "dflash", "model": "my-head-vllm",
        "num_speculative_tokens": 15}'``.
    """
    out = Path(out_dir)
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    if out.exists():
        raise ValueError(f"{out} exists already; choose a new folder")
    loaded = load_head(head_dir)
    _refuse_what_vllm_lacks(loaded)
    tensors = {
        name: tensor.to(DTYPES[dtype]).contiguous()
        for name, tensor in loaded.head.state_dict().items()
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
        raw = vllm_config(loaded.config) | {"dtype": dtype}
        (scratch / "config.json").write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
        scratch.chmod(0o755)
        os.rename(scratch, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return out


def vllm_config(config: HeadConfig) -> dict[str, Any]:
    """The config.json of an exported head: ours without what only we read."""
    raw = write_config(config)
    del raw["jetflow"], raw["dflash_config"]["draft_shift"]
    return raw | {"architectures": [ARCHITECTURE], "tie_word_embeddings": False}


def _refuse_what_vllm_lacks(loaded: LoadedHead) -> None:
    config = loaded.config
    reasons = [
        reason
        for present, reason in (
            (config.learned_mask, "a learned mask vector (vLLM takes one from a pickle file only)"),
            (config.path_rank > 0, f"a path term of rank {config.path_rank}"),
            (config.normalize_taps, "tap normalisation (normalize_taps)"),
            (config.depth_offset_rows > 0, "learned depth offsets (depth_offset_rows)"),
            (config.input_bridge, "an input bridge (input_bridge)"),
            (config.draft_shift, "shifted slots (draft_shift)"),
        )
        if present
    ]
    if reasons:
        raise NotExportable(
            f"the head at {loaded.path} has what vLLM's dflash cannot run: {'; '.join(reasons)}"
        )
