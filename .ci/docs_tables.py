"""Keeps the tables of the documentation equal to the code.

``python .ci/docs_tables.py`` rewrites them; the tests call ``outdated`` and fail while it names
a page.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("tree", "core", "kernels", "train", "serve")
END = "<!-- end of table -->"


def modules_table(package: str) -> str:
    """One row for each file of a package, in the order of their paths, from its docstring."""
    source = ROOT / "packages" / f"jetflow-{package}" / "src"
    rows = ["| file | what it holds |", "|---|---|"]
    for file in sorted((source / f"jetflow_{package}").rglob("*.py")):
        first = _first_line(file)
        if first:
            rows.append(f"| `{file.relative_to(source).as_posix()}` | {first} |")
    return "\n".join(rows) + "\n"


def _first_line(file: Path) -> str:
    """The first paragraph of a module's docstring in one line, up to its first full stop."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    line = " ".join(text.partition("\n\n")[0].split()).replace("``", "`")
    return re.split(r"(?<=[^.])\.(?:\s|$)", line)[0].replace("|", "\\|")


def request_table() -> str:
    """What becomes of every request field."""
    from jetflow_core.request_fields import fields_table

    return fields_table()


def tables() -> dict[tuple[str, str], Callable[[], str]]:
    """The makers of all tables, by page and name."""
    found: dict[tuple[str, str], Callable[[], str]] = {
        ("docs/request-options.md", "request fields"): request_table
    }
    for package in PACKAGES:
        key = ("docs/architecture.md", f"files of jetflow_{package}")
        found[key] = lambda package=package: modules_table(package)
    return found


def fresh_pages() -> dict[Path, str]:
    """Every page with tables as it should be now.

    Raises:
        ValueError: a page lacks the marks of one of its tables.
    """
    pages: dict[Path, str] = {}
    for (page, name), make in tables().items():
        file = ROOT / page
        text = pages.get(file) or file.read_text(encoding="utf-8")
        start = f"<!-- table: {name} -->\n"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(END)
        if not found or not closed:
            raise ValueError(f"{page} lacks the marks of the table {name!r}")
        pages[file] = f"{before}{start}\n{make()}\n{END}{after}"
    return pages


def outdated() -> list[str]:
    """Pages whose tables differ from the code."""
    return [
        file.relative_to(ROOT).as_posix()
        for file, text in fresh_pages().items()
        if file.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    for file, text in fresh_pages().items():
        file.write_text(text, encoding="utf-8")
