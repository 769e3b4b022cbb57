"""Drawings: text always, rich if it is there, DOT and mermaid with labels that cannot break out."""

import re
import subprocess
import sys

import pytest
from jetflow_tree import Accepted, Tree, to_dot, to_mermaid, to_rich, to_text

TREE = Tree.from_parents([7, 1, 2, 3], [-1, 0, 0, 1], [0.0, -0.1, -2.4, -0.3])
ACCEPTED = Accepted(nodes=(1, 3), tokens=(1, 3), correction=9)
NASTY = {7: 'say "hi"\\', 1: "[red]", 2: "a\nb\t\x1b[31m", 3: '"]; x --> y <b>|#`', 9: "é\u2028"}


def test_text_draws_every_node_and_marks_the_path():
    assert to_text(TREE, ACCEPTED).splitlines() == [
        "7",
        "├─ 1  90.5% *",
        "│  └─ 3  74.1% *",
        "└─ 2  9.1%",
        "then the target's own: 9",
    ]


def test_text_keeps_one_line_a_node_whatever_the_labels():
    text = to_text(TREE, ACCEPTED, NASTY.__getitem__)
    assert len(text.splitlines()) == 5
    assert "\x1b" not in text
    assert r"a\nb\t\x1b[31m" in text


def test_a_root_alone_is_drawn_without_a_path():
    assert to_text(Tree.root_only(4)) == "4"
    assert to_text(Tree.root_only(4), Accepted((), (), 5)).splitlines()[1].endswith("5")


def test_a_very_deep_chain_can_be_drawn():
    deep = Tree.from_parents(range(3000), range(-1, 2999))
    assert len(to_text(deep).splitlines()) == 3000


def test_dot_strings_stay_closed():
    dot = to_dot(TREE, ACCEPTED, NASTY.__getitem__)
    string = re.compile(r'"(?:[^"\\\n]|\\.)*"')
    bare = string.sub("", dot)
    assert '"' not in bare
    assert "x --> y" not in bare
    assert [line.split()[0] for line in bare.splitlines()[2:6]] == ["n0", "n1", "n2", "n3"]
    assert dot.count("->") - dot.count("-->") == 4
    assert dot.count("palegreen") == 2


def test_mermaid_labels_hold_no_syntax():
    chart = to_mermaid(TREE, ACCEPTED, NASTY.__getitem__)
    labels = re.findall(r'^  n\d+\["(.*)"\]$', chart, flags=re.MULTILINE)
    assert len(labels) == 4
    for label in labels:
        assert re.fullmatch(r"(?:\w| |#\d+;)*", label)
    assert chart.startswith("graph TD\n")
    assert "class n1,n3 kept" in chart
    assert "n3 -.-> c" in chart


def test_mermaid_without_an_accepted_path_names_no_class():
    assert "class" not in to_mermaid(TREE)
    assert "class" not in to_mermaid(TREE, Accepted((), (), 5))


def test_rich_shows_labels_as_they_are():
    from rich.console import Console

    console = Console(width=60, force_terminal=False)
    with console.capture() as capture:
        console.print(to_rich(TREE, ACCEPTED, NASTY.__getitem__))
    text = capture.get()
    assert "[red]" in text
    assert "(target)" in text
    assert len(text.splitlines()) == 5


def test_without_rich_the_error_names_the_extra():
    code = (
        "import sys; sys.modules['rich'] = None\n"
        "from jetflow_tree import Tree, to_rich, to_text\n"
        "print(to_text(Tree.root_only(1)))\n"
        "try:\n    to_rich(Tree.root_only(1))\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "1"
    assert "jetflow-tree[rich]" in done.stdout


@pytest.mark.parametrize("draw", [to_text, to_dot, to_mermaid])
def test_labels_default_to_token_numbers(draw):
    drawn = draw(TREE)
    assert all(str(token) in drawn for token in TREE.tokens.tolist())
