"""The offline walk is what the decode engine does: the same rounds, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.head.checkpoint import HeadInfo, LoadedHead
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.head.model import DraftHead
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target
from jetflow_train.evaluation.drafts import draft_texts
from jetflow_train.evaluation.policies import BASE, OWN, Policy, all_policies
from jetflow_train.evaluation.walk import Drafts, LazyCandidates, StoredText, walk
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.initialise import head_config
from jetflow_train.target import FrozenTarget, from_model
from jetflow_tree.stats import AcceptanceStats

TAPS = (0, 1, 3)
LIMIT = 14
PROMPTS = ((3, 14, 15, 92, 65, 35), (8, 9))


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Any]) -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def frozen(model: Any) -> FrozenTarget:
    return from_model(model, torch.device("cpu"))


@pytest.fixture(scope="module")
def target(model: Any) -> Target:
    return Target.from_model(model, taps=TAPS)


def make_head(frozen: FrozenTarget, **options: Any) -> DraftHead:
    """A random head whose candidates are half of the vocabulary, so that some are right."""
    config = head_config(
        frozen.shape,
        num_layers=1,
        block_size=6,
        path_rank=options.pop("path_rank", 8),
        taps=TAPS,
        path_context=options.pop("path_context", False),
        causal=options.pop("causal", True),
    )
    torch.manual_seed(1)
    head = DraftHead(replace(config, **{"candidates": 64, **options})).to(frozen.dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return head.eval().requires_grad_(False)


def decoded(
    engine: Engine, policy: Policy, params: SamplingParams
) -> tuple[list[list[int]], list[list[int]], list[AcceptanceStats]]:
    """Tokens, round sizes and acceptance of real decoding, the prompts in flight together."""
    count = len(PROMPTS)
    tokens: list[list[int]] = [[] for _ in range(count)]
    sizes: list[list[int]] = [[] for _ in range(count)]
    stats = [AcceptanceStats() for _ in range(count)]
    options = TreeOptions(budget=policy.budget, builder=policy.builder)
    for one in engine.rounds(PROMPTS, [params] * count, options, num_slots=2):
        tokens[one.request] += [pick.token for pick in one.picks]
        sizes[one.request].append(len(one.picks))
        stats[one.request].add(one.tree, one.accepted)
    return tokens, sizes, stats


HEADS: dict[str, dict[str, Any]] = {
    "path": {},
    "pool": {"path_context": True, "candidates": 24, "candidate_pool": 100},
    "bidirectional": {"path_rank": 0, "causal": False},
    "short": {"max_position_embeddings": 12},
    "bridge": {"input_bridge": True},
    "calibrated": {"score_temperatures": ((0.0, 0.5), (1.0, 1.5))},
}


@pytest.mark.parametrize(
    ("kind", "temperature"),
    [
        ("path", 0.0),
        ("path", 0.8),
        ("bidirectional", 0.0),
        ("short", 0.8),
        ("calibrated", 0.2),
        ("bridge", 0.0),
        pytest.param("pool", 0.8, marks=pytest.mark.slow),
    ],
)
def test_the_walks_rounds_are_those_of_the_decode_loop(
    frozen: FrozenTarget, target: Target, kind: str, temperature: float
) -> None:
    head = make_head(frozen, **HEADS[kind])
    engine = Engine(target, LoadedHead(head, HeadInfo(), Path("head")))
    params = SamplingParams(max_new_tokens=LIMIT, temperature=temperature, seed=5)
    chain, *trees = all_policies((9, 128), head.config.max_depth)[:4]
    written, accepted = decoded(engine, chain, params)[0], 0
    assert [len(answer) for answer in written] == [LIMIT, LIMIT]
    accepted += compare(engine, frozen, head, [chain], params, written)
    # The first answer ends with a stop token now, at the latest the second at its longest length.
    stopped = replace(params, stop_token_ids=(written[0][9],))
    accepted += compare(engine, frozen, head, trees, stopped, decoded(engine, chain, stopped)[0])
    assert accepted > 5


def compare(
    engine: Engine,
    frozen: FrozenTarget,
    head: DraftHead,
    policies: Sequence[Policy],
    params: SamplingParams,
    written: Sequence[Sequence[int]],
) -> int:
    """Accepted tokens of all rounds, which decoding and walking must agree about."""
    texts = [
        StoredText(tokens=np.asarray([*prompt, *answer]), prompt_len=len(prompt), limit=LIMIT)
        for prompt, answer in zip(PROMPTS, written, strict=True)
    ]
    drafts = [each[OWN] for each in draft_texts(frozen, head, texts, [OWN], params.temperature)]
    candidates = [LazyCandidates(*pair) for pair in zip(texts, drafts, strict=True)]
    accepted = 0
    for policy in policies:
        tokens, sizes, stats = decoded(engine, policy, params)
        assert tokens == written
        for i, text in enumerate(texts):
            walked = walk(text, candidates[i], policy)
            assert walked.sizes == sizes[i], policy.name
            assert walked.stats == stats[i], policy.name
            assert sum(walked.by_candidate) == stats[i].accepted
            accepted += stats[i].accepted
    return accepted


@pytest.mark.parametrize(
    "options", [{}, {"path_context": True, "candidate_pool": 100, "input_bridge": True}]
)
def test_drafts_of_many_texts_are_those_of_the_engines_drafter(
    frozen: FrozenTarget, options: dict[str, Any]
) -> None:
    head = make_head(frozen, **{"candidates": 8, **options})
    rng = np.random.default_rng(0)
    texts = [
        StoredText(tokens=rng.integers(0, 128, size=size), prompt_len=start, limit=9)
        for size, start in ((12, 5), (4, 1), (10, 9))
    ]
    drafted = list(draft_texts(frozen, head, texts, [OWN, BASE], 0.0))
    drafter = HeadDrafter(head, frozen.embedding, frozen.lm_head, num_slots=1, capacity=64)
    for text, drafts in zip(texts, drafted, strict=True):
        row = torch.from_numpy(text.tokens)[None]
        mask = torch.ones(1, row.shape[1], row.shape[1], dtype=torch.bool).tril()
        features, _ = frozen.capture(row, torch.arange(row.shape[1])[None], mask, TAPS)
        assert len(drafts[OWN].tokens) == len(text.answer)
        for index in range(len(text.answer)):
            known = text.tokens[: text.first + index].tolist()
            drafter.begin(0, known)
            drafter.observe(0, known, features[0, : len(known)])
            root = int(text.tokens[text.first + index])
            (wanted,) = drafter.propose([0], [root], head.config.max_depth)
            assert (wanted.tokens == drafts[OWN].tokens[index]).all()
            assert np.allclose(wanted.log_probs, drafts[OWN].log_probs[index], atol=1e-5)


def test_the_base_is_the_head_with_a_path_term_of_zero(frozen: FrozenTarget) -> None:
    head = make_head(frozen)
    text = StoredText(tokens=np.arange(20) * 7 % 128, prompt_len=5, limit=16)
    (with_path,) = draft_texts(frozen, head, [text], [OWN, BASE], 0.0)
    assert head.path is not None
    with torch.no_grad():
        head.path.out.weight.zero_()
    (without,) = draft_texts(frozen, head, [text], [OWN, BASE], 0.0)
    assert (without[OWN].tokens == with_path[BASE].tokens).all()
    assert (without[OWN].tokens != with_path[OWN].tokens).any()
    assert np.allclose(
        without[OWN].log_probs[:, :, 0], with_path[BASE].log_probs[:, :, 0], atol=1e-5
    )


def test_a_head_that_is_not_finite_is_refused(frozen: FrozenTarget) -> None:
    head = make_head(frozen)
    with torch.no_grad():
        head.norm.weight[0] = float("nan")
    text = StoredText(tokens=np.arange(9), prompt_len=5, limit=4)
    with pytest.raises(ValueError, match="logits that are not finite"):
        list(draft_texts(frozen, head, [text], [OWN], 0.0))


def certain(rows: Sequence[Sequence[int]], positions: int = 1000) -> Drafts:
    """Drafts of one text whose chain at each root is a row."""
    tokens = np.asarray(rows)[:, :, None]
    tokens = np.concatenate([tokens, tokens + 1], axis=2)
    table = np.log([0.9, 0.05]) + np.zeros((*tokens.shape[:2], 1, 2))
    return Drafts(tokens=tokens, log_probs=table, positions=positions)


@settings(max_examples=60)
@given(
    length=st.integers(1, 14),
    more=st.integers(0, 3),
    depth=st.integers(1, 5),
    seed=st.integers(0, 50),
    positions=st.integers(1, 20),
)
def test_a_chain_walk_counts_as_its_definition_says(
    length: int, more: int, depth: int, seed: int, positions: int
) -> None:
    rng = np.random.default_rng(seed)
    answer = rng.integers(0, 3, size=length) * 2
    tokens = np.concatenate([[10, 11], answer])
    rows = rng.integers(0, 3, size=(length, depth)) * 2
    text = StoredText(tokens=tokens, prompt_len=2, limit=length + more)
    chain = all_policies((4,), depth)[0]
    found = walk(text, LazyCandidates(text, certain(rows, positions)), chain)
    wanted, done = [], 0
    while done < length:
        deepest = min(depth, length + more - done - 1, positions - 1 - (1 + done))
        kept = 0
        # The last token is the target's own: it is never looked for in a draft.
        while (
            kept < deepest and done + kept < length - 1 and rows[done, kept] == answer[done + kept]
        ):
            kept += 1
        wanted.append(kept + 1)
        done += kept + 1
    assert found.sizes == wanted
    assert sum(found.sizes) == length
    assert found.by_candidate[0] == length - len(wanted)


def test_processes_walk_as_one_does(frozen: FrozenTarget) -> None:
    from jetflow_train.evaluation.answers import answer_prompts
    from jetflow_train.evaluation.offline import evaluate

    head = make_head(frozen)
    answers = answer_prompts(frozen, [np.asarray(p) for p in PROMPTS], max_new_tokens=LIMIT)
    policies = {OWN: all_policies((9,), 4), BASE: all_policies((9,), 4)[:1]}
    alone = evaluate(frozen, head, answers, policies)
    with Walkers(2) as walkers:
        shared = evaluate(frozen, head, answers, policies, walkers)
    assert shared.walked == alone.walked
    assert [len(each.walks) for each in alone.walked] == [2] * 4
    assert alone.walked[0].tokens == answers.tokens
    with pytest.raises(ValueError, match="walkers 0"):
        Walkers(0)
