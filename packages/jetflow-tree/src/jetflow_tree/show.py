"""Drawings of a tree with its accepted path: text, rich, DOT and mermaid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp
from typing import TYPE_CHECKING

from jetflow_tree.accept import Accepted
from jetflow_tree.mask import linked_lists
from jetflow_tree.tree import Tree

if TYPE_CHECKING:
    import rich.tree

Label = Callable[[int], str]


def to_text(tree: Tree, accepted: Accepted | None = None, label: Label | None = None) -> str:
    """The tree in lines of text, one node a line, children in row order.

    Args:
        tree: The tree to draw.
        accepted: What the round kept; its nodes are marked ``*`` and its correction is shown.
        label: Names a token; its number when left out. Unprintable characters are escaped.

    Returns:
        Lines without a final newline; each node with its path probability in per cent.

    Examples:
        >>> print(to_text(Tree.from_parents([7, 1, 2], [-1, 0, 0], [0.0, -0.1, -2.4])))
        7
        ├─ 1  90.5%
        └─ 2  9.1%
    """
    name = _namer(label)
    kept = set(accepted.nodes) if accepted else set[int]()
    lines = []
    for row, lead in _depth_first(tree):
        share = f"  {_percent(tree, row)}" if row else ""
        mark = " *" if row in kept else ""
        lines.append(f"{lead}{name(int(tree.tokens[row]))}{share}{mark}")
    if accepted:
        lines.append(f"then the target's own: {name(accepted.correction)}")
    return "\n".join(lines)


def to_rich(
    tree: Tree, accepted: Accepted | None = None, label: Label | None = None
) -> rich.tree.Tree:
    """The tree as a rich renderable, accepted nodes in green, the correction in yellow.

    Args:
        tree: The tree to draw.
        accepted: What the round kept.
        label: Names a token; its number when left out.

    Returns:
        A ``rich.tree.Tree`` for ``rich.print`` or a console.

    Raises:
        ImportError: If rich is not installed; the message names the extra that brings it.
    """
    try:
        from rich.text import Text
        from rich.tree import Tree as Branch
    except ImportError as error:
        raise ImportError(
            "to_rich needs rich: install 'jetflow-tree[rich]', or use to_text"
        ) from error
    name = _namer(label)
    kept = {0, *accepted.nodes} if accepted else {0}
    # Text, not markup: a token may well be "[red]".
    branches = [Branch(Text(name(int(tree.tokens[0])), style="bold"))]
    for row in range(1, tree.num_nodes):
        text = Text(name(int(tree.tokens[row])), style="bold green" if row in kept else "")
        text.append(f"  {_percent(tree, row)}", style="dim")
        branches.append(branches[int(tree.parents[row])].add(text))
    if accepted:
        end = accepted.nodes[-1] if accepted.nodes else 0
        branches[end].add(Text(f"{name(accepted.correction)}  (target)", style="yellow"))
    return branches[0]


def to_dot(tree: Tree, accepted: Accepted | None = None, label: Label | None = None) -> str:
    """The tree in Graphviz DOT, accepted nodes filled.

    Args:
        tree: The tree to draw.
        accepted: What the round kept; the correction becomes a dashed node.
        label: Names a token; its number when left out. Quotes and backslashes are escaped.

    Returns:
        The text of a digraph.
    """
    name = _namer(label)
    kept = set(accepted.nodes) if accepted else set[int]()
    lines = ["digraph tree {", "  node [shape=box];"]
    for row in range(tree.num_nodes):
        fill = ' style=filled fillcolor="palegreen"' if row in kept else ""
        lines.append(f'  n{row} [label="{_dot(name(int(tree.tokens[row])))}"{fill}];')
    lines += [
        f'  n{int(tree.parents[row])} -> n{row} [label="{_percent(tree, row)}"];'
        for row in range(1, tree.num_nodes)
    ]
    if accepted:
        end = accepted.nodes[-1] if accepted.nodes else 0
        lines.append(f'  c [label="{_dot(name(accepted.correction))}" style=dashed];')
        lines.append(f"  n{end} -> c [style=dashed];")
    return "\n".join([*lines, "}"])


def to_mermaid(tree: Tree, accepted: Accepted | None = None, label: Label | None = None) -> str:
    """The tree as a mermaid flowchart, accepted nodes in the class ``kept``.

    Args:
        tree: The tree to draw.
        accepted: What the round kept; the correction becomes a rounded node.
        label: Names a token; its number when left out. Every character that mermaid or HTML
            could read as syntax is written as an entity.

    Returns:
        The text of the chart.
    """
    name = _namer(label)
    lines = ["graph TD"]
    lines += [
        f'  n{row}["{_mermaid(name(token))}"]' for row, token in enumerate(tree.tokens.tolist())
    ]
    lines += [
        f'  n{int(tree.parents[row])} -->|"{_percent(tree, row)}"| n{row}'
        for row in range(1, tree.num_nodes)
    ]
    if accepted:
        end = accepted.nodes[-1] if accepted.nodes else 0
        lines.append(f'  c(["{_mermaid(name(accepted.correction))}"])')
        lines.append(f"  n{end} -.-> c")
    if accepted and accepted.nodes:
        lines.append("  classDef kept fill:#cfc")
        lines.append(f"  class {','.join(f'n{row}' for row in accepted.nodes)} kept")
    return "\n".join(lines)


def _depth_first(tree: Tree) -> Iterator[tuple[int, str]]:
    """Rows with the rules to draw before them; a stack, so that no depth is too deep."""
    first, following = (links.tolist() for links in linked_lists(tree))
    yield 0, ""
    stack = [(first[0], "")]
    while stack:
        row, lead = stack.pop()
        if row < 0:
            continue
        last = following[row] < 0
        yield row, lead + ("└─ " if last else "├─ ")
        stack.append((following[row], lead))
        stack.append((first[row], lead + ("   " if last else "│  ")))


def _namer(label: Label | None) -> Label:
    def name(token: int) -> str:
        text = str(token) if label is None else label(token)
        return "".join(
            char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
        )

    return name


def _percent(tree: Tree, row: int) -> str:
    return f"{100.0 * exp(float(tree.scores[row])):.1f}%"


def _dot(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _mermaid(text: str) -> str:
    return "".join(char if char.isalnum() or char == " " else f"#{ord(char)};" for char in text)
