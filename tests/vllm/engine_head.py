"""In vLLM a head proposes what it proposes in jetflow-core, from vLLM's cache and features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from jetflow_core.head.checkpoint import load_head
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.session import CachedSession
from jetflow_core.target import Target
from jetflow_tree import Candidates
from oracle import Oracle
from requests_made import SETS
from running import runner_of, tokens, tree_engine

Known = list[tuple[list[int], list[int]]]

PLAIN_PARTS: dict[str, Any] = {
    "learned_mask": False, "mask_token_id": 5, "normalize_taps": False, "input_bridge": False,
    "path_rank": 0, "path_context": False, "depth_offset_rows": 0, "target_layer_ids": (1,),
}  # fmt: skip
HEADS: dict[str, dict[str, Any]] = {
    "every part": {},
    "no part": PLAIN_PARTS,
    "shifted": {"draft_shift": True, "depth_offset_rows": 0},
    "bidirectional": {**PLAIN_PARTS, "causal": False},
    "a pool": {"candidates": 6, "candidate_pool": 20},
}


class Core:
    """The same head in jetflow-core, asked about any text."""

    def __init__(self, target: Path, head: Path) -> None:
        loaded = load_head(head)
        taps = loaded.config.target_layer_ids
        model = Target.load(target, taps=taps, dtype=torch.float32)
        self._session = CachedSession(model, capacity=512)
        self._drafter = HeadDrafter(
            loaded.head, model.embed_tokens, model.lm_head, num_slots=1, capacity=512
        )

    def propose(self, text: list[int], depth: int) -> Candidates:
        self._drafter.begin(0, text)
        features = self._session.prefill(0, text).features
        self._session.release(0)
        self._drafter.observe(0, text[:-1], features)
        return self._drafter.propose([0], [text[-1]], depth)[0]


def _recorded(llm: Any, known: Known) -> list[tuple[Any, list[int], Candidates]]:
    """What the head proposed, with the ask and the prompt, while trees were kept on purpose."""
    runner = runner_of(llm)
    draft = runner.drafter.draft
    found: list[tuple[Any, list[int], Candidates]] = []

    def recording(asks: Any, last: Any, common: Any) -> list[Candidates]:
        drafts: list[Candidates] = draft(asks, last, common)
        for ask, made in zip(asks, drafts, strict=True):
            found.append((ask, runner.requests[ask.request].prompt_token_ids, made))
        return drafts

    runner.drafter.draft = recording
    Oracle(known).take_over(runner)
    return found


@pytest.mark.parametrize("name", HEADS)
def test_the_same_candidates(
    target: Path, tmp_path: Path, known: Known, plain_tokens: dict[str, list[list[int]]], name: str
) -> None:
    head = tiny.make_head(tmp_path / "head", tiny.head_config(**HEADS[name]))
    answers = dict(zip((tuple(p) for p, _ in SETS["greedy"]), plain_tokens["greedy"], strict=True))
    with tree_engine(target, head, 16, max_num_batched_tokens=64) as llm:
        recorded = _recorded(llm, known)
        assert tokens(llm, SETS["greedy"]) == plain_tokens["greedy"]
    assert len(recorded) > 50
    core = Core(target, head)
    alike = []
    for ask, prompt, made in recorded[::3]:
        text = [*prompt, *answers[tuple(prompt)]][: ask.place + 1]
        if ask.place >= len(text):
            # More was kept than the answer was allowed to have.
            continue
        assert text[-1] == ask.root
        wanted = core.propose(text, ask.depth)
        alike.append((made.tokens == wanted.tokens).all())
        if alike[-1]:
            np.testing.assert_allclose(made.log_probs, wanted.log_probs, atol=2e-4)
    # Two candidates of nearly the same score may change places.
    assert sum(alike) >= 0.9 * len(alike) > 20
