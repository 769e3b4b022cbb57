"""The package needs numpy and nothing else, and its documented examples are true."""

import doctest
import importlib
import inspect
import subprocess
import sys

import jetflow_tree
import pytest

MODULES = [
    "accept", "baselines", "bench", "build", "candidates", "cost", "frontier", "mask",
    "reference", "score", "share", "show", "stats", "tree",
]  # fmt: skip


def test_importing_pulls_in_numpy_alone():
    code = (
        "import sys\n"
        "import numpy\n"
        "before = {name.partition('.')[0] for name in sys.modules}\n"
        "import jetflow_tree\n"
        + "".join(f"import jetflow_tree.{name}\n" for name in MODULES)
        + "after = {name.partition('.')[0] for name in sys.modules} - before\n"
        "print(sorted(after - set(sys.stdlib_module_names)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['jetflow_tree']"


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_hold(name):
    module = importlib.import_module(f"jetflow_tree.{name}")
    assert doctest.testmod(module).failed == 0


def test_there_are_examples_to_hold():
    count = sum(
        doctest.testmod(importlib.import_module(f"jetflow_tree.{name}")).attempted
        for name in MODULES
    )
    assert count >= 10


def test_every_public_name_exists_and_is_documented():
    for name in jetflow_tree.__all__:
        thing = getattr(jetflow_tree, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name
