"""Second passes of real heads: their rows are those of filled blocks, in commands as well."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    exact_policies,
    second_pass_policies,
)
from jetflow_train.evaluation.second_pass import SecondPass
from jetflow_train.evaluation.second_walk import (
    Asked,
)
from jetflow_train.evaluation.walk import StoredText
from jetflow_train.initialise import head_config, new_head
from jetflow_train.objectives import Objective, reference_rows
from jetflow_train.schedule import Horizon
from jetflow_train.shards import Corpus
from jetflow_train.step import StepFunctions
from jetflow_train.target import FrozenTarget, from_model
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer
from jetflow_tree import Tree

CPU = torch.device("cpu")
WORDS, DEPTH = 4, 3
WHOLE = 1 + 4 + 16 + 64


@pytest.fixture(scope="module")
def target(tiny_model: Callable[..., Any]) -> FrozenTarget:
    return from_model(tiny_model("llama"), CPU)


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
