"""The head that an engine serves, read and checked before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jetflow_core.head.checkpoint import read_config
from jetflow_core.head.config import HeadConfig

from jetflow_serve.refusals import ServeRefused, check_head_keys, mismatches


def read_head(folder: Path) -> HeadConfig:
    """The description of the head in ``folder``.

    Raises:
        ServeRefused: vLLM would run it otherwise than it says.
        HeadLoadError: there is no head.
        HeadConfigError: its config.json is wrong.
    """
    head, _ = read_config(folder)
    file = folder / "config.json"
    check_head_keys(json.loads(file.read_text(encoding="utf-8")), str(file))
    return head


def check_target(head: HeadConfig, model: str) -> None:
    """Refuses a target in a local folder that the head was not made for.

    A target that is no folder is left to vLLM, which checks it again when it starts.

    Raises:
        ServeRefused: naming every size that differs.
    """
    file = Path(model) / "config.json"
    if not file.is_file():
        return
    raw: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    sizes = [raw.get(name) for name in ("num_hidden_layers", "hidden_size", "vocab_size")]
    # Sizes that stand elsewhere in the file belong to models of other kinds.
    if any(not isinstance(size, int) for size in sizes):
        return
    layers, hidden, vocab = (int(str(size)) for size in sizes)
    faults = list(mismatches(head, layers=layers, hidden_size=hidden, vocab_size=vocab))
    if faults:
        raise ServeRefused("; ".join(faults))
