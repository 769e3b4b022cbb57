"""The equality tests can fail: without the mask, and without the move, the text is another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jetflow_serve.engine.attention import TreeRows
from jetflow_serve.v1 import runner as runner_module
from oracle import Oracle
from requests_made import SETS
from running import runner_of, tokens, tree_engine

Tokens = dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def trees(target: Path, head: Path, known: list[tuple[list[int], list[int]]]) -> Iterator[Any]:
    with tree_engine(target, head, 16) as llm:
        Oracle(known).take_over(runner_of(llm))
        yield llm


def _differing(trees: Any, plain: Tokens) -> int:
    found = tokens(trees, SETS["greedy"])
    return sum(one != other for one, other in zip(found, plain["greedy"], strict=True))


def test_without_the_move(
    trees: Any, plain_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "move_rows", lambda cache, sources, targets: None)
    assert _differing(trees, plain_tokens) == len(SETS["greedy"])


def test_without_the_mask(
    trees: Any, plain_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: list[TreeRows] = []
    monkeypatch.setattr(runner_module, "tree_rows", lambda staged: nothing)
    assert _differing(trees, plain_tokens) >= len(SETS["greedy"]) - 1


def test_with_both(trees: Any, plain_tokens: Tokens) -> None:
    assert _differing(trees, plain_tokens) == 0
