"""What is loaded when nobody names a target or a head."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from jetflow_core.embedded import embedded_target


def default_target() -> Path:
    """Folder of the embedded SmolLM2-135M-Instruct, converted at first use."""
    return embedded_target()


def default_head() -> Path:
    """Folder of the demonstration head for the embedded target.

    Raises:
        ValueError: this installation lacks it.
    """
    folder = Path(str(files("jetflow_core") / "data" / "smollm2-135m-head"))
    if not folder.is_dir():
        raise ValueError(
            "this installation of jetflow-core lacks the demonstration head; name another head"
        )
    return folder


def is_default_target(target: str | Path | None) -> bool:
    """Whether ``target`` means the embedded one."""
    return target is None or (Path(target).is_dir() and Path(target) == embedded_target())
