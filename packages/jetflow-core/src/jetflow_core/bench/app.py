"""The benchmarks as one application, for places where no entry points are installed."""

from __future__ import annotations

import sys

from cyclopts import App

from jetflow_core.cli import run_app
from jetflow_core.commands.registry import new_app

_NAME = "jetflow_core.bench"


def build() -> App:
    """The application; a command's module is imported when it runs."""
    app = new_app(_NAME, "Benchmarks: decode, engine, engine-lossless, lossless, tree.")
    for name in ("decode", "engine", "engine-lossless", "lossless", "tree"):
        module = f"bench_{name.replace('-', '_')}"
        app.command(f"jetflow_core.commands.{module}:command", name=name)
    return app


def main() -> None:
    """Runs the command line of this process and exits."""
    sys.exit(run_app(build(), sys.argv[1:], name=_NAME))
