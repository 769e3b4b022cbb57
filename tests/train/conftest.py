"""What tests of the trainer share: a target and runs that take a second."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RUNS = Path(__file__).with_name("process_run.py")


@pytest.fixture(scope="session")
def new_run() -> Callable[..., Any]:
    """``process_run.trainer_in``: makes a trainer in a folder, in this process."""
    made: Callable[..., Any] = runpy.run_path(str(RUNS))["trainer_in"]
    return made
