"""The packages fit each other, and each is light to import."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAMES = ("tree", "core", "kernels", "train", "serve")
# Who may depend on whom, beside third parties.
ARROWS = {
    "tree": set(),
    "core": {"tree"},
    "kernels": set(),
    "train": {"core", "tree"},
    "serve": {"core", "kernels", "tree"},
}
# What is not there in every installation, or takes seconds to import.
OPTIONAL = ("triton", "vllm", "matplotlib", "gguf", "datasets")
HEAVY = ("torch", "transformers", "tokenizers")


def _project(name: str) -> dict[str, Any]:
    file = ROOT / "packages" / f"jetflow-{name}" / "pyproject.toml"
    project: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    return project


def _siblings(name: str) -> dict[str, str]:
    """Bounds of the siblings a package depends on, by their short names."""
    found = {}
    for requirement in _project(name).get("dependencies", []):
        match = re.fullmatch(r"jetflow-(\w+)(.*)", requirement)
        if match:
            found[match[1]] = match[2]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_siblings_are_bounded_from_below_and_by_the_next_minor(name: str) -> None:
    siblings = _siblings(name)
    assert set(siblings) <= ARROWS[name]
    for sibling, bounds in siblings.items():
        version = _project(sibling)["version"]
        major, minor, _ = (int(part) for part in version.split("."))
        assert bounds == f">={major}.{minor},<{major}.{minor + 1}", (name, sibling, version)


@pytest.mark.parametrize("name", NAMES)
def test_each_package_is_complete(name: str) -> None:
    folder = ROOT / "packages" / f"jetflow-{name}"
    project = _project(name)
    assert project["name"] == f"jetflow-{name}"
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "Apache-2.0"
    assert "dynamic" not in project
    assert (folder / "src" / f"jetflow_{name}" / "py.typed").is_file()
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    changes = (folder / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {project['version']}\n" in changes
    assert len((folder / "README.md").read_text(encoding="utf-8").splitlines()) > 5


@pytest.mark.parametrize("name", NAMES)
def test_importing_a_package_needs_nothing_optional_and_is_light(name: str) -> None:
    hidden = [*OPTIONAL, *(() if name == "kernels" else HEAVY)]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({hidden}))  # None makes an import of it fail
import jetflow_{name}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_every_entry_point_leads_to_a_documented_function() -> None:
    for name in NAMES:
        points = _project(name).get("entry-points", {}).get("jetflow.commands", {})
        for command, target in points.items():
            module, _, function = target.partition(":")
            file = ROOT / "packages" / f"jetflow-{name}" / "src" / Path(*module.split("."))
            text = file.with_suffix(".py").read_text(encoding="utf-8")
            assert re.search(rf'^def {function}\((.|\n)*?:\n    """\S', text, re.M), command


def test_the_arrows_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout)
