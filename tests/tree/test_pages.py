"""The pages' code runs as printed, and the example engine reproduces plain decoding."""

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def run_blocks(page: Path) -> tuple[str, dict[str, object]]:
    """What the page's Python blocks print, run one after the other, and the names they leave."""
    names: dict[str, object] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in BLOCK.findall(page.read_text()):
            exec(compile(block, str(page), "exec"), names)
    return printed.getvalue(), names


def test_the_readme_prints_what_it_says():
    page = ROOT / "packages/jetflow-tree/README.md"
    printed, _ = run_blocks(page)
    assert printed
    assert f"```\n{printed}```\n" in page.read_text()


def test_the_integration_page_runs_as_printed():
    _, names = run_blocks(ROOT / "docs/engine-integration.md")
    assert len(names["trees"]) == 2
    assert names["accepted"].emitted[-1] == names["accepted"].correction


def test_the_example_engine_writes_the_plain_text_in_fewer_passes():
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/own_engine.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    passes = [int(n) for n in re.findall(r"same 60 tokens in (\d+) passes", done.stdout)]
    assert len(passes) == 4
    assert passes[0] == 60
    assert passes == sorted(passes, reverse=True)
    assert passes[-1] < 30


@pytest.mark.parametrize("fault", ["mask", "positions", "commit"])
def test_the_example_notices_a_wrong_engine(fault, monkeypatch):
    """Each of the three points of contact matters: done wrongly, the text changes."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import own_engine

    if fault == "mask":
        monkeypatch.setattr(
            own_engine, "ancestor_matrix", lambda tree: np.tri(tree.num_nodes, dtype=bool)
        )
    elif fault == "positions":
        monkeypatch.setattr(own_engine, "position_offsets", lambda tree: np.arange(tree.num_nodes))
    else:
        commit = own_engine.Engine.commit
        monkeypatch.setattr(
            own_engine.Engine, "commit", lambda self, rows: commit(self, list(range(len(rows))))
        )
    with pytest.raises(SystemExit, match="differs from plain decoding"):
        own_engine.main()
