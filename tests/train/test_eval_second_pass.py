"""Trees of a second pass: exact where the conditionals are, as real as the head's own blocks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from jetflow_core.cli import run_app
from jetflow_core.head.checkpoint import HeadInfo, save_head
from jetflow_core.head.context import PaddedContext
from jetflow_core.head.model import DraftHead
from jetflow_core.head.prefix import fill_prefix
from jetflow_train.cli import build
from jetflow_train.evaluation.answers import answer_prompts
from jetflow_train.evaluation.drafts import draft_passes
from jetflow_train.evaluation.offline import evaluate
from jetflow_train.evaluation.policies import (
    BASE,
    OWN,
    SECOND_PASS,
    Policy,
    exact_policies,
    second_pass_policies,
)
from jetflow_train.evaluation.second_pass import SecondPass
from jetflow_train.evaluation.second_walk import (
    Asked,
    first_rows,
    second_tree,
    walk_twice_drafted,
)
from jetflow_train.evaluation.walk import Drafts, LazyCandidates, StoredText, Walk, walk
from jetflow_train.initialise import head_config, new_head
from jetflow_train.objectives import Objective, reference_rows
from jetflow_train.schedule import Horizon
from jetflow_train.shards import Corpus
from jetflow_train.step import StepFunctions
from jetflow_train.target import FrozenTarget, from_model
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer
from jetflow_tree import BestFirst, Candidates, Tree
from numpy.typing import NDArray

CPU = torch.device("cpu")
WORDS, DEPTH = 4, 3
WHOLE = 1 + 4 + 16 + 64


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Any]) -> FrozenTarget:
    return from_model(tiny_model("llama"), CPU)


class Oracle:
    """A language whose next word depends on the last one, and a head that knows it exactly."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.chance = rng.dirichlet(np.full(WORDS, 0.4), size=WORDS) + 1e-3
        self.chance /= self.chance.sum(axis=1, keepdims=True)

    def first_pass(self, text: StoredText) -> Drafts:
        """Each depth's own distribution, that of all paths mixed."""
        powers = [np.linalg.matrix_power(self.chance, depth) for depth in range(1, DEPTH + 1)]
        rows = np.stack([[power[root] for power in powers] for root in _roots(text)])
        order = np.argsort(-rows, axis=2, kind="stable")
        table = np.log(np.take_along_axis(rows, order, axis=2))
        return Drafts(order.astype(np.int64), table[:, :, None], 10_000)

    def conditional(self, text: StoredText) -> Drafts:
        """What a path term that is right would say."""
        count = len(text.answer)
        table = np.broadcast_to(np.log(self.chance), (count, DEPTH, WORDS, WORDS)).copy()
        table[:, 0] = np.log(self.chance[_roots(text)])[:, None]
        tokens = np.broadcast_to(np.arange(WORDS), (count, DEPTH, WORDS))
        return Drafts(tokens, table, 10_000)

    def children(self, asked: Sequence[Asked]) -> list[Candidates]:
        """The second pass."""
        rows = [self.chance[each.tree.tokens] for each in asked]
        order = [np.argsort(-some, axis=1, kind="stable") for some in rows]
        return [
            Candidates.marginal(places, np.log(np.take_along_axis(some, places, axis=1)))
            for some, places in zip(rows, order, strict=True)
        ]

    def texts(self, count: int, length: int) -> list[StoredText]:
        rng, found = np.random.default_rng(5), []
        for _ in range(count):
            words = [int(rng.integers(WORDS)), int(rng.integers(WORDS))]
            while len(words) < 2 + length:
                words.append(int(rng.choice(WORDS, p=self.chance[words[-1]])))
            found.append(StoredText(tokens=np.asarray(words), prompt_len=2, limit=length))
        return found


def _roots(text: StoredText) -> NDArray[np.int64]:
    return text.tokens[text.first : text.first + len(text.answer)]


class Everything:
    """A builder whose trees hold every node, so that a first tree limits nothing."""

    def build(self, root: int, candidates: Candidates, budget: int) -> Tree:
        return BestFirst().build(root, candidates, max(budget, WHOLE))


def over_everything(budget: int) -> Policy:
    return Policy(kind=SECOND_PASS, budget=budget, builder=Everything())


def walked(oracle: Oracle, texts: Sequence[StoredText], policy: Policy) -> list[Walk]:
    drafts = [oracle.first_pass(text) for text in texts]
    return walk_twice_drafted(texts, drafts, policy, oracle.children)


def tau(walks: Sequence[Walk]) -> float:
    return sum(sum(each.sizes) for each in walks) / sum(len(each.sizes) for each in walks)


@pytest.mark.parametrize("budget", [2, 6, 11])
def test_over_whole_first_trees_an_oracles_trees_are_those_of_the_exact_conditionals(
    budget: int,
) -> None:
    oracle = Oracle()
    texts = oracle.texts(12, 40)
    mine = walked(oracle, texts, over_everything(budget))
    exact = exact_policies([budget], DEPTH)[1]
    theirs = [walk(text, LazyCandidates(text, oracle.conditional(text)), exact) for text in texts]
    assert [each.sizes for each in mine] == [each.sizes for each in theirs]
    assert [each.stats.rows for each in mine] == [each.stats.rows for each in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one.stats.expected == pytest.approx(other.stats.expected)
        assert sum(one.by_candidate) == one.stats.accepted == sum(one.sizes) - len(one.sizes)
    once = [walk(text, LazyCandidates(text, oracle.first_pass(text)), exact) for text in texts]
    assert [each.sizes for each in once] != [each.sizes for each in mine] or budget == 2


def test_scores_of_both_passes_are_read_at_the_temperature_of_the_first() -> None:
    oracle = Oracle()
    texts = oracle.texts(4, 20)
    exact, expected = exact_policies([6], DEPTH)[1], []
    for temperature in (1.0, 0.5):
        firsts, conditionals = (
            [replace(make(text), score_temperature=temperature) for text in texts]
            for make in (oracle.first_pass, oracle.conditional)
        )
        mine = walk_twice_drafted(texts, firsts, over_everything(6), oracle.children)
        for text, drafts, found in zip(texts, conditionals, mine, strict=True):
            other = walk(text, LazyCandidates(text, drafts), exact)
            assert found.stats.expected == pytest.approx(other.stats.expected)
        expected.append(sum(each.stats.expected for each in mine))
    assert expected[1] > expected[0] + 1


@pytest.mark.parametrize("budget", [4, 8, 16])
def test_the_oracles_scores_are_the_exact_chances_of_paths(budget: int) -> None:
    oracle, expected, marginal = Oracle(1), 0.0, 0.0
    for root in range(WORDS):
        text = StoredText(tokens=np.asarray([0, root, 0]), prompt_len=2, limit=9)
        drafted = LazyCandidates(text, oracle.first_pass(text)).at(1)
        first = BestFirst().build(root, drafted, budget)
        (below,) = oracle.children([Asked(0, 1, first)])
        tree = second_tree(first, below, budget, DEPTH)
        assert tree.num_nodes == budget
        for row in range(1, budget):
            path = [root, *tree.tokens[list(tree.path(row))].tolist()]
            chances = [oracle.chance[a, b] for a, b in pairwise(path)]
            assert tree.scores[row] == pytest.approx(np.log(chances).sum())
        expected += tree.expected_length()
        exact = LazyCandidates(text, oracle.conditional(text)).at(1)
        best = BestFirst().build(root, exact, budget)
        assert tree.expected_length() <= best.expected_length() + 1e-9
        true = second_tree(first, below, 10**4, DEPTH)
        kept = {tuple(first.tokens[list(first.path(row))]) for row in range(1, budget)}
        marginal += 1 + sum(
            float(np.exp(true.scores[row]))
            for row in range(1, true.num_nodes)
            if tuple(true.tokens[list(true.path(row))]) in kept
        )
    # Under the true chances the second tree is never worse than the first.
    assert expected > marginal - 1e-9
    assert budget == 4 or expected > marginal + 1e-3


def test_knowing_the_path_gives_longer_rounds() -> None:
    oracle = Oracle()
    texts = oracle.texts(40, 60)
    exact = exact_policies([8], DEPTH)[1]
    once, best = (
        [walk(text, LazyCandidates(text, make(text)), exact) for text in texts]
        for make in (oracle.first_pass, oracle.conditional)
    )
    assert (
        tau(once) + 0.03
        < tau(walked(oracle, texts, second_pass_policies([8])[0]))
        <= tau(best) + 0.02
    )


@examples(max_examples=60)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 9), budget=st.integers(1, 14))
def test_the_final_tree_is_the_best_of_what_is_known(seed: int, rows: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, parents = [9], [-1]
    while len(tokens) < rows:
        parent, token = int(rng.integers(len(tokens))), int(rng.integers(4))
        if (parent, token) not in list(zip(parents, tokens, strict=True)):
            parents.append(parent)
            tokens.append(token)
    first = Tree.from_parents(tokens, parents)
    children = np.stack([rng.permutation(4)[:3] for _ in range(rows)])
    table = -np.sort(rng.exponential(size=(rows, 3)) + 0.3, axis=1)
    below = Candidates.marginal(children, table)
    depth = int(rng.integers(0, 5))
    tree = second_tree(first, below, budget, depth)
    # All nodes that can be known: children of first nodes that are children themselves.
    known: dict[tuple[int, ...], float] = {(): 0.0}
    row_of = {tuple(first.tokens[list(first.path(r))].tolist()): r for r in range(rows)}
    for row in range(rows):
        path = tuple(first.tokens[list(first.path(row))].tolist())
        if path in known and len(path) < depth:
            for token, score in zip(children[row].tolist(), table[row].tolist(), strict=True):
                known[(*path, token)] = known[path] + score
    found = {
        tuple(tree.tokens[list(tree.path(r))].tolist()): float(tree.scores[r])
        for r in range(tree.num_nodes)
    }
    assert len(found) == min(budget, len(known))
    assert found == {path: pytest.approx(known[path]) for path in found}
    left = [score for path, score in known.items() if path not in found]
    assert not left or max(left) <= min(found.values()) + 1e-12
    for path in found:
        assert first_rows(first, path) == [row_of[path[:d]] for d in range(len(path))]


def make_head(target: FrozenTarget, **options: Any) -> DraftHead:
    config = head_config(
        target.shape,
        num_layers=2,
        block_size=6,
        path_rank=options.pop("path_rank", 8),
        taps=(0, 1, 3),
        prefix_filled=options.pop("prefix_filled", True),
        input_bridge=True,
    )
    torch.manual_seed(1)
    head = DraftHead(replace(config, candidates=24, **options)).to(target.dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return head.eval().requires_grad_(False)


def some_texts() -> list[StoredText]:
    rng = np.random.default_rng(0)
    return [
        StoredText(tokens=rng.integers(0, 128, size=size), prompt_len=start, limit=limit)
        for size, start, limit in ((12, 5, 9), (4, 1, 20), (10, 9, 1))
    ]


def test_children_are_those_of_the_block_that_begins_with_the_path(target: FrozenTarget) -> None:
    head, texts, compared = make_head(target, path_rank=0), some_texts(), 0
    (drafted,) = draft_passes(target, head, texts, [OWN], 0.0)
    trees = [Tree.from_parents([0, 5, 6, 5], [-1, 0, 0, 2]), Tree.from_parents([0, 3], [-1, 0])]
    places = ((0, 4, trees[0]), (1, 2, trees[1]), (0, 9, trees[1]), (1, 0, trees[0]))
    asked = [
        Asked(i, place, replace_root(tree, int(texts[i].tokens[place])))
        for i, place, tree in places
    ]
    found = SecondPass(target, head, drafted.features, own=True).children(asked)
    for (text, place, tree), table in zip(asked, found, strict=True):
        assert (table.depth, table.width) == (tree.num_nodes, 24)
        row = torch.from_numpy(texts[text].tokens)[None]
        mask = torch.ones(1, row.shape[1], row.shape[1], dtype=torch.bool).tril()
        features, _ = target.capture(row, torch.arange(row.shape[1])[None], mask, (0, 1, 3))
        fused = head.fuse(features)
        last = fused[:, place - 1] if place else torch.zeros_like(fused[:, 0])
        context = head.context_keys_values(fused[:, :place], torch.arange(place)[None])
        for node in range(tree.num_nodes):
            path = tree.tokens[[0, *tree.path(node)]].tolist()
            tokens = torch.tensor([path + [0] * (6 - len(path))])
            block = head.block_input(tokens[:, 0], target.embedding, 5)
            block = fill_prefix(
                head, block, target.embedding, tokens, torch.tensor([len(path) - 1])
            )
            block = head.bridged(block, target.embedding[tokens[:, 0]], last)
            inside = torch.cat([torch.ones(6, place, dtype=torch.bool), head.block_mask(6, CPU)], 1)
            hidden = head.run_block(
                block, place + torch.arange(6)[None], PaddedContext(context, inside[None, None])
            )
            scores = (hidden[0, len(path)] @ target.lm_head.T).log_softmax(-1)
            best = scores.topk(24)
            assert table.tokens[node].tolist() == best.indices.tolist()
            assert np.allclose(table.log_probs[node, 0], best.values, atol=1e-5)
            compared += 1
    assert compared == 12


def replace_root(tree: Tree, token: int) -> Tree:
    return Tree.from_parents([token, *tree.tokens[1:].tolist()], tree.parents)


def test_an_evaluation_walks_every_policy_over_the_same_texts(target: FrozenTarget) -> None:
    head = make_head(target)
    prompts = [np.asarray([3, 14, 15, 92]), np.asarray([8, 9]), np.asarray([65])]
    answers = answer_prompts(target, prompts, max_new_tokens=14)
    exact, twice = exact_policies((9, 40), 5), second_pass_policies((1, 9, 40))
    policies = {OWN: [twice[0], *exact, *twice[1:]], BASE: [*twice[1:], exact[1]]}
    found = evaluate(target, head, answers, policies)
    assert [(each.candidates, each.policy.name) for each in found.walked] == [
        (name, policy.name) for name, some in policies.items() for policy in some
    ]
    for each in found.walked:
        assert each.tokens == answers.tokens == 42
        slots = 2 * each.policy.budget if each.policy.second_pass else 0
        assert each.head_slots == 6 + slots
        assert len(each.walks) == 3
    own = found.of(OWN)
    assert own["second-pass-1"].tau == 1.0
    assert own["second-pass-40"].tau >= own["second-pass-9"].tau
    assert own["second-pass-40"].rounds < own["second-pass-1"].rounds
    plain = evaluate(target, head, answers, {OWN: exact, BASE: [exact[1]]})
    for each in plain.walked:
        assert each == found.of(each.candidates)[each.policy.name]
    # The path term has a say in both passes of the head's own candidates, in none of the base's.
    assert head.path is not None
    bare = evaluate(target, head, answers, {BASE: twice[1:]})
    with torch.no_grad():
        head.path.out.weight.zero_()
    without = evaluate(target, head, answers, {OWN: twice[1:]})
    assert [each.walks for each in without.walked] == [each.walks for each in bare.walked]
    assert [each.walks for each in bare.walked] != [own[p.name].walks for p in twice[1:]]


def test_a_head_not_trained_for_it_is_refused(target: FrozenTarget) -> None:
    head = make_head(target, prefix_filled=False)
    answers = answer_prompts(target, [np.asarray([3, 14])], max_new_tokens=4)
    with pytest.raises(ValueError, match="a second pass needs a head that was trained"):
        evaluate(target, head, answers, {OWN: second_pass_policies((4,))})
    filled = make_head(target)
    with torch.no_grad():
        filled.mask_embedding[0] = float("nan")
    texts = some_texts()
    (drafted,) = draft_passes(target, head, texts, [OWN], 0.0)
    again = SecondPass(target, filled, drafted.features, own=True)
    with pytest.raises(ValueError, match="the second pass gave logits that are not finite"):
        again.children([Asked(0, 4, Tree.root_only(int(texts[0].tokens[4])))])


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Callable[..., Any],
    save_words: Callable[..., None],
) -> Path:
    """A target with words, a head that may be asked twice, and one that may not."""
    home = tmp_path_factory.mktemp("eval")
    model = tiny_model("llama", dtype=torch.float32, eos_token_id=127)
    model.save_pretrained(home / "target")
    save_words(home / "target", 127, stop="end")
    single = from_model(model, CPU)
    for name, filled in (("filled", True), ("plain", False)):
        save_head(home / name, make_head(single, prefix_filled=filled), HeadInfo())
    (home / "p.jsonl").write_text(json.dumps({"prompt": "w1 w2"}))
    return home


def test_the_command_tells_what_a_second_pass_gives_and_costs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)

    def go(*words: str) -> int:
        common = "--prompts p.jsonl --target target --workers 1 --temperatures 0 --budgets 4 8"
        return run_app(build(), ["eval", *words, *common.split(), "--second-pass"], name="j")

    assert go("--head", "filled", "--max-new-tokens", "12", "--out", "r.json") == 0
    report = json.loads((folder / "r.json").read_text())
    (one,) = report["sets"][0]["temperatures"]
    rows = {(row["candidates"], row["policy"]): row for row in one["rows"]}
    for candidates in ("head", "base"):
        for budget in (4, 8):
            assert rows[candidates, f"second-pass-{budget}"]["head_slots"] == 6 + 2 * budget
            assert rows[candidates, f"tree-{budget}"]["head_slots"] == 6
            assert rows[candidates, f"second-pass-{budget}"]["tokens"] == one["tokens"]
    assert {"second-pass", "head_slots", "pass_seconds"} <= report["definitions"].keys()
    assert report["heads"][0]["prefix_filled"] is True
    times = report["heads"][0]["pass_seconds"]
    assert times["context"] == 512 and times["second"].keys() == {"4", "8"}
    assert 0 < times["block"] < 1 and all(0 < each < 1 for each in times["second"].values())
    assert "second-pass-8" in capsys.readouterr().out
    assert go("--head", "filled", "plain") == 2
    assert "--second-pass needs heads that were trained with --prefix-fill; the head at plain" in (
        capsys.readouterr().err
    )


@pytest.mark.slow
def test_behind_true_tokens_a_trained_head_knows_what_masks_cannot_tell(
    tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    single = from_model(tiny_model("llama", dtype=torch.float32), CPU)
    # Sharp enough that what follows depends on what was drawn before.
    single = replace(single, lm_head=6 * single.lm_head)
    prompt = np.asarray([9, 4, 77])
    answers = answer_prompts(single, [prompt] * 96, temperature=1.0, max_new_tokens=6, seed=1)
    corpus = Corpus.of(
        [prompt] * 96,
        [text.tokens[3:] for text in answers.texts],
        np.ones(96, np.float32),
        np.zeros(96, np.bool_),
    )
    config = head_config(
        single.shape, num_layers=2, block_size=5, path_rank=0, taps=(0, 1, 3), prefix_filled=True
    )
    head = new_head(single, config, torch.arange(64).view(2, 32), seed=0)
    settings = TrainConfig(
        rows=2, width=90, anchors=40, chunks=1, prefix_fill=0.5, gamma=0.0, learning_rate=3e-3
    )
    trainer = Trainer(single, head, corpus, settings, tmp_path, compiled=False)
    trainer.run(Horizon(steps=150), report=_quiet)
    # KL of depth 2 from the target, at fresh answers to the prompt, with and without its path.
    fresh = answer_prompts(single, [prompt] * 64, temperature=1.0, max_new_tokens=6, seed=2)
    losses = [_depth_two(single, head, fresh.texts, filled) for filled in (0, 1)]
    assert losses[1] < 0.6 * losses[0], losses


def _depth_two(
    target: FrozenTarget, head: DraftHead, texts: Sequence[StoredText], filled: int
) -> float:
    from jetflow_train.blocks import block_ropes

    tokens = torch.from_numpy(np.stack([text.tokens for text in texts]))
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    mask = torch.ones(len(texts), tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
    features, final = target.capture(tokens, positions, mask, head.config.target_layer_ids)
    anchors = torch.full((len(texts), 1), 2)
    ropes = block_ropes(head, positions, anchors, target.dtype)
    blocks = StepFunctions.plain(Objective()).blocks
    with torch.no_grad():
        hidden = blocks(
            head, features, target.embedding, tokens, torch.zeros_like(tokens), ropes, anchors,
            torch.full_like(anchors, filled),
        )  # fmt: skip
        rows = reference_rows(
            Objective(), hidden[:, 0, 1] @ target.lm_head.T, final[:, 3] @ target.lm_head.T,
            tokens[:, 4],
        )  # fmt: skip
    return float(rows.mean())


def _quiet(text: str) -> None:
    assert text
