"""``jetflow serve export``: a head for stock vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def command(
    head: Path, out: Path, /, *, dtype: Literal["float32", "bfloat16", "float16"] = "float32"
) -> None:
    """Write a head in the layout that stock vLLM runs as a chain.

    Args:
        head: The head's folder.
        out: The folder to write; it must not exist.
        dtype: Type of the stored weights.
    """
    from jetflow_serve.export import export_for_vllm

    print(f"written: {export_for_vllm(head, out, dtype=dtype)}")
