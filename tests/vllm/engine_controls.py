"""The equality tests can fail: without the mask, and without the move, the text is another."""

from __future__ import annotations

from pathlib import Path

import pytest
from jetflow_serve.v1 import runner as runner_module
from jetflow_serve.v1.attention import TreeRows
from oracle import Oracle
from requests_made import SETS
from running import runner_of, tokens, tree_engine

Tokens = dict[str, list[list[int]]]
Known = list[tuple[list[int], list[int]]]


def _differing(target: Path, head: Path, known: Known, plain: Tokens) -> int:
    with tree_engine(target, head, 16) as llm:
        Oracle(known).take_over(runner_of(llm))
        found = tokens(llm, SETS["greedy"])
    return sum(one != other for one, other in zip(found, plain["greedy"], strict=True))


def test_without_the_move(
    target: Path, head: Path, known: Known, plain_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "move_rows", lambda cache, sources, targets: None)
    assert _differing(target, head, known, plain_tokens) == len(SETS["greedy"])


def test_without_the_mask(
    target: Path, head: Path, known: Known, plain_tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: list[TreeRows] = []
    monkeypatch.setattr(runner_module, "tree_rows", lambda staged: nothing)
    assert _differing(target, head, known, plain_tokens) >= len(SETS["greedy"]) - 1


def test_with_both(target: Path, head: Path, known: Known, plain_tokens: Tokens) -> None:
    assert _differing(target, head, known, plain_tokens) == 0
