"""Finds the commands of all installed packages and hangs them into one application.

A package adds a command by an entry point of the group ``jetflow.commands``:

    [project.entry-points."jetflow.commands"]
    generate = "jetflow_core.commands.generate:command"      # jetflow generate
    "bench.tree" = "jetflow_core.commands.bench_tree:command"  # jetflow bench tree

A dot in the name makes a group: every package may add to ``bench``, and a group shows only what is
installed. The object is a function with annotations as cyclopts reads them; what it returns is the
exit code (None: 0). It is imported when the command runs and not before. The front page of the
help is made from the first line of the function's docstring, and the command's own help from all
of it up to the arguments, both read from the source file without importing it, so that
``jetflow --help`` stays instant whatever a command's module imports.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from importlib.machinery import PathFinder
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from cyclopts import App, Parameter

from jetflow_core.commands.settings_file import read_settings
from jetflow_core.reports.provenance import package_versions

GROUP = "jetflow.commands"

_GROUP_HELP = {
    "bench": "Measure decoding, trees and losslessness; JSON with provenance, plots on request.",
    "data": "Make the data that a draft head is trained on.",
    "serve": "Draft heads for serving engines.",
}


def build_app(commands: Iterable[EntryPoint] | None = None) -> App:
    """The application with every installed command.

    Args:
        commands: entry points; None: those of all installed packages.
    """
    found = entry_points(group=GROUP) if commands is None else commands
    versions = [f"{name} {version}" for name, version in package_versions().items()]
    app = new_app(
        "jetflow", "Tree speculative decoding: the target's own text in fewer target passes."
    )
    app.help_epilogue = f"Installed: {', '.join(versions)}"
    app.version = "\n".join(versions)
    for command in sorted(found, key=lambda entry: entry.name):
        *groups, name = command.name.split(".")
        group = _group(app, groups)
        group.command(command.value, name=name, help=description(command.value))
    return app


def new_app(name: str, text: str) -> App:
    """An application without commands that leaves errors to ``jetflow_core.cli.run_app``.

    A command with an option ``--config`` reads its options from that file too.
    """
    return App(
        name=name,
        help=text,
        config=(read_settings,),
        help_format="plaintext",
        exit_on_error=False,
        print_error=False,
        default_parameter=Parameter(negative=()),
        result_action="return_value",
    )


def _group(app: App, names: list[str]) -> App:
    for name in names:
        if name not in app:
            app.command(App(name=name, help=_GROUP_HELP.get(name, ""), version_flags=[]))
        app = app[name]
    return app


def summary(reference: str) -> str:
    """First docstring line of ``module:function``, read without importing; "" if it has none."""
    return description(reference).partition("\n")[0]


def description(reference: str) -> str:
    """Docstring of ``module:function`` up to its arguments, a line a paragraph, not imported.

    Returns:
        "" if it has none.
    """
    module, _, name = reference.partition(":")
    source = _source(module)
    if source is None:
        return ""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            text = (ast.get_docstring(node) or "").partition("\n\nArgs:")[0]
            return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))
    return ""


def _source(module: str) -> Path | None:
    """The module's file. ``importlib.util.find_spec`` would import the packages around it."""
    places: list[str] | None = None
    spec = None
    for depth in range(1, module.count(".") + 2):
        spec = PathFinder.find_spec(".".join(module.split(".")[:depth]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    return Path(spec.origin) if spec is not None and spec.origin else None
