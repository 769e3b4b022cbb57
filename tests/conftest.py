"""Fixtures shared by the tests of all packages."""

from pathlib import Path

import pytest
from jetflow_core.embedded import embedded_target


@pytest.fixture(scope="session")
def embedded_folder() -> Path:
    """The Hugging Face folder of the embedded target, converted on first use."""
    return embedded_target()
