"""The three benchmarks as one application, for places where no entry points are installed."""

from __future__ import annotations

import sys

from cyclopts import App


def build() -> App:
    """The application; a command's module is imported when it runs."""
    app = App(
        name="jetflow_core.bench",
        help="Benchmarks: decode, lossless, tree.",
        help_format="plaintext",
        result_action="return_value",
    )
    for name in ("decode", "lossless", "tree"):
        app.command(f"jetflow_core.commands.bench_{name}:command", name=name)
    return app


def main() -> None:
    """Runs the command line of this process and exits."""
    sys.exit(build()(sys.argv[1:]))
