"""`jetflow eval`: what it tells, and what it refuses in one line before any model is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_core.bench.summary import bootstrap
from jetflow_core.cli import run_app
from jetflow_train.cli import build
from jetflow_train.evaluation.settings import EvalSettings, head_names

Call = Callable[..., tuple[int, str, str]]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}!"


class World(NamedTuple):
    """Files of a run, all in one folder that is the current one."""

    folder: Path
    call: Call


def save_tokenizer(folder: Path) -> None:
    """One token a character, and a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    characters = ["<eos>", *map(chr, range(33, 127)), "Ġ", "Ċ"]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(characters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<eos>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[..., Any]) -> Path:
    """A target and two heads for it: one with a path term, one without; and a foreign head."""
    import torch
    from jetflow_core.fit import tokenizer_fingerprint
    from jetflow_core.head.checkpoint import HeadInfo, save_head
    from jetflow_core.head.model import DraftHead
    from jetflow_core.loading import load_tokenizer
    from jetflow_train.initialise import head_config
    from jetflow_train.target import from_model

    folder = tmp_path_factory.mktemp("models")
    model = tiny_model("qwen3", dtype=torch.float32, eos_token_id=0)
    model.save_pretrained(folder / "target")
    save_tokenizer(folder / "target")
    known = tokenizer_fingerprint(load_tokenizer(folder / "target"))
    shape = from_model(model, torch.device("cpu")).shape
    for name, rank, info in (
        ("a/head", 8, HeadInfo(target="tiny", tokenizer_sha256=known)),
        ("b/head", 0, HeadInfo()),
        ("other-words", 0, HeadInfo(tokenizer_sha256="0" * 64)),
    ):
        torch.manual_seed(len(name) + rank)
        config = head_config(shape, num_layers=1, block_size=6, path_rank=rank, taps=(0, 3))
        head = DraftHead(config)
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        save_head(folder / name, head, info)
    config = json.loads((folder / "b/head/config.json").read_text())
    assert config["num_target_layers"] == 4
    (folder / "deeper").mkdir()
    (folder / "deeper/config.json").write_text(json.dumps({**config, "num_target_layers": 9}))
    return folder


@pytest.fixture
def world(
    models: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    for each in models.iterdir():
        (tmp_path / each.name).symlink_to(each)
    lines = [{"prompt": text} for text in ("one", "and two", "x" * 300)]
    for name in ("math", "chat"):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "again").mkdir()
    (tmp_path / "again/math.jsonl").write_text(json.dumps(lines[0]))
    (tmp_path / "long.jsonl").write_text(json.dumps(lines[2]))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_app(build(), ["eval", *words], name="jetflow-train")
        out, err = capsys.readouterr()
        return code, out, err

    return World(tmp_path, call)


GOOD = "--head a/head --prompts math.jsonl --target target --workers 1"
CASES = {
    "--prompts math.jsonl": "--head",
    "--head a/head": "--prompts",
    "--head none --prompts math.jsonl --target target": "no head at none",
    "--head empty --prompts math.jsonl --target target": "no head at empty",
    "--head a/head --prompts none.jsonl": "cannot read the prompts of none.jsonl",
    "--head a/head --prompts math.jsonl again/math.jsonl": "two prompt sets are called 'math'",
    "--head a/head --prompts long.jsonl --target target": "no prompt of at most 128 tokens",
    "--head a/head --prompts math.jsonl --target empty": "cannot load a target from 'empty'",
    "--head a/head a/head --prompts math.jsonl": "two heads are called 'a/head'",
    "--head deeper --prompts math.jsonl --target target": "number of layers is 9; this target's",
    "--head other-words --prompts math.jsonl --target target": "tokenizer with fingerprint 0000",
    f"{GOOD} --temperatures -1": "temperature -1.0 is out of range: 0 (greedy), or 0.001 to 100",
    f"{GOOD} --temperatures nan": "temperature nan is out of range",
    f"{GOOD} --temperatures 0.0001": "temperature 0.0001 is out of range",
    f"{GOOD} --temperatures 0 0": "temperature 0 comes twice",
    f"{GOOD} --budgets 0": "budgets 0 is out of range: 1 to 256",
    f"{GOOD} --budgets 16 257": "budgets 257 is out of range",
    f"{GOOD} --budgets 4.5": "budgets '4.5' is no whole number",
    f"{GOOD} --budgets 4 4": "budget 4 comes twice",
    f"{GOOD} --limit 0": "limit 0 is out of range",
    f"{GOOD} --seed -1": "seed -1 is out of range",
    f"{GOOD} --max-new-tokens 0": "max-new-tokens 0 is out of range",
    f"{GOOD} --max-new-tokens 256": "max_new_tokens 256 is out of range: the target has 256",
    f"{GOOD} --out none/r.json": "cannot write none/r.json: the folder none does not exist",
    f"{GOOD} --out empty": "cannot write empty: it is a folder",
    f"{GOOD} --plots math.jsonl/p": "math.jsonl is no folder",
}


@pytest.mark.parametrize("line", CASES)
def test_one_line_and_exit_code_2_before_a_model_is_loaded(
    line: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("jetflow_core.loading.load_model", loaded)
    monkeypatch.setattr("jetflow_train.target.load_model", loaded)
    before = sorted(world.folder.rglob("*"))
    code, out, err = world.call(*line.split())
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert CASES[line] in err
    assert sorted(world.folder.rglob("*")) == before


def test_plots_without_matplotlib_name_the_extra(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    code, _, err = world.call(*GOOD.split(), "--plots", "p")
    assert code == 2
    assert "plots need matplotlib, which is not installed: install jetflow-train[plot]" in err


@pytest.mark.slow
def test_a_report_of_two_heads(world: World) -> None:
    words = (
        "--head a/head b/head --prompts math.jsonl chat.jsonl --target target --workers 1 "
        "--limit 3 --temperatures 0 1 --budgets 16 4 --max-new-tokens 20 --out r.json --plots p"
    )
    code, out, err = world.call(*words.split())
    assert code == 0, err
    report = json.loads((world.folder / "r.json").read_text())
    assert report["format"] == "jetflow-eval/1"
    assert report["settings"]["heads"] == ["head", "head"]
    assert [each["name"] for each in report["heads"]] == ["a/head", "b/head"]
    assert str(world.folder) not in json.dumps(report)
    assert report["provenance"]["packages"]["jetflow-train"]
    assert {"tau", "walk", "ratio_to_first", "loop"} <= set(report["definitions"])
    assert [one["name"] for one in report["sets"]] == ["math", "chat"]
    for one in report["sets"]:
        assert (one["prompts"], one["prompts_too_long"]) == (2, 1)
        assert one["provenance"]["files"] == {f"{one['name']}.jsonl": one["provenance"]["files"][
            f"{one['name']}.jsonl"
        ]}  # fmt: skip
        assert [each["temperature"] for each in one["temperatures"]] == [0.0, 1.0]
        for each in one["temperatures"]:
            check_temperature(each)
    greedy, sampled = report["sets"][0]["temperatures"]
    assert greedy["answers_sha256"] != sampled["answers_sha256"]
    assert sorted(file.name for file in (world.folder / "p").iterdir()) == [
        "acceptance-by-depth.png",
        "tau-by-budget.png",
    ]
    assert all(f.read_bytes()[:4] == b"\x89PNG" for f in (world.folder / "p").iterdir())
    assert "math, temperature 0" in out
    assert "a/head base tree-16" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "chat at temperature 1, b/head: chain" in err


def check_temperature(each: dict[str, Any]) -> None:
    own = ["chain", "tree-4", "tree-16", "all-children-4", "all-children-16"]
    names = [(row["head"], row["candidates"], row["policy"]) for row in each["rows"]]
    assert names == [
        *(("a/head", "head", policy) for policy in own),
        *(("a/head", "base", policy) for policy in own[:3]),
        *(("b/head", "head", policy) for policy in own),
    ]
    assert 0 <= each["cut_by_length"] <= each["answers"] == 2
    assert 2 <= each["tokens"] <= 40
    for row in each["rows"]:
        assert row["tokens"] == each["tokens"]
        assert row["tau"] == row["tokens"] / row["rounds"] >= 1
        assert row["tau_interval"][0] <= row["tau"] <= row["tau_interval"][1]
        assert sum(entry["accepted"] for entry in row["accepted_by_rank"]) == (
            sum(entry["accepted"] for entry in row["accepted_by_depth"])
        ) == row["tokens"] - row["rounds"]  # fmt: skip
        reached = [entry["reached"] for entry in row["accepted_by_depth"]]
        assert reached == sorted(reached, reverse=True)
        assert row["rows_per_round"] <= row["budget"]
        first = row["head"] == "a/head"
        assert (row["ratio_to_first"] is None) == first
        if not first:
            (same,) = [r for r, n in zip(each["rows"], names, strict=True)
                       if n == ("a/head", "head", row["policy"])]  # fmt: skip
            ratio = row["ratio_to_first"]
            assert ratio["ratio"] == pytest.approx(row["tau"] / same["tau"])
            assert ratio["interval"][0] <= ratio["ratio"] <= ratio["interval"][1]
    assert [(t["head"], t["candidates"]) for t in each["top1"]] == [
        ("a/head", "head"),
        ("a/head", "base"),
        ("b/head", "head"),
    ]
    for top1 in each["top1"]:
        assert [entry["depth"] for entry in top1["by_depth"]] == [1, 2, 3, 4, 5]
        assert top1["by_depth"][0]["places"] == each["tokens"]


@given(
    pairs=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=8),
    tokens=st.integers(30, 60),
)
def test_the_ratios_interval_is_that_of_the_taus_in_the_same_draws(
    pairs: list[tuple[int, int]], tokens: int
) -> None:
    from jetflow_train.evaluation.figures import ratio_interval

    mine, first = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    low, high = ratio_interval(mine, first)
    assert low <= sum(first) / sum(mine) * 1.0000001 or len(pairs) > 1
    # With one round a prompt on the other side, the ratio is tau over the tokens of one round.
    ones = [1] * len(pairs)
    assert ratio_interval(mine, [tokens] * len(pairs)) == pytest.approx(
        bootstrap([tokens] * len(pairs), mine)
    )
    low, high = ratio_interval(mine, mine)
    assert low == high == 1.0
    assert ratio_interval(ones, ones) == [1.0, 1.0]
    with pytest.raises(ValueError, match="pairs are needed"):
        ratio_interval(mine, [*first, 1])


def test_heads_of_runs_are_told_apart_by_their_runs(tmp_path: Path) -> None:
    assert head_names([Path("x/best"), Path("y/last")]) == ("best", "last")
    assert head_names([tmp_path / "x/head", tmp_path / "y/head", Path("z")]) == (
        "x/head", "y/head", "z",
    )  # fmt: skip
    with pytest.raises(ValueError, match="two heads are called 'x/head'"):
        head_names([tmp_path / "x/head", tmp_path / "y/../x/head"])
    with pytest.raises(ValueError, match="prompts are missing"):
        EvalSettings(heads=(Path("a"),), prompts=())


def test_answers_depend_on_seed_and_number_alone(models: Path) -> None:
    import torch
    from jetflow_train.evaluation.answers import answer_prompts
    from jetflow_train.target import load_target

    target = load_target(models / "target", torch.device("cpu"), torch.float32)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(1, 90, size=size) for size in (3, 7, 5)]
    all_three = answer_prompts(target, prompts, temperature=1.0, max_new_tokens=12, seed=4)
    two = answer_prompts(target, prompts[:2], temperature=1.0, max_new_tokens=12, seed=4)
    other = answer_prompts(target, prompts, temperature=1.0, max_new_tokens=12, seed=5)
    assert [text.answer for text in two.texts] == [text.answer for text in all_three.texts[:2]]
    assert other.sha256() != all_three.sha256()
    ended = [text for text in all_three.texts if text.answer[-1] in target.stop_tokens]
    assert all_three.cut == 3 - len(ended)
    assert all(len(text.answer) == 12 for text in all_three.texts if text not in ended)


@pytest.mark.slow
def test_evaluation_in_training_walks_stored_answers(models: Path) -> None:
    import torch
    from jetflow_core.head.checkpoint import load_head
    from jetflow_train.evaluation.answers import answer_prompts
    from jetflow_train.evaluation.in_training import StoredAnswerEvaluation
    from jetflow_train.evaluation.offline import evaluate
    from jetflow_train.evaluation.policies import OWN, exact_policies
    from jetflow_train.target import load_target
    from jetflow_train.trainer import Evaluate

    target = load_target(models / "target", torch.device("cpu"), torch.float32)
    head = load_head(models / "a/head").head
    sets = {"math": [np.arange(1, 9), np.arange(5, 20)], "chat": [np.arange(40, 43)]}
    made: Evaluate = StoredAnswerEvaluation.prepare(
        target, sets, budgets=(4, 16), temperatures=(0.0, 0.7)
    )
    figures = made(head, 10)
    assert figures == made(head, 20)
    for temperature, of in ((0.0, ""), (0.7, " at 0.7")):
        tokens, rounds = 0, 0
        for name, prompts in sets.items():
            answers = answer_prompts(target, prompts, temperature=temperature)
            found = evaluate(target, head, answers, {OWN: exact_policies((4, 16), 5)}).of(OWN)
            for trees, policy in (("chain", "chain"), ("4", "tree-4"), ("16", "tree-16")):
                assert figures[f"tau/{name}{of}/{trees}"] == found[policy].tau >= 1
            tokens, rounds = tokens + answers.tokens, rounds + found["tree-16"].rounds
        assert figures[f"tau/all{of}/16"] == tokens / rounds
    assert len(figures) == 18
    with pytest.raises(ValueError, match="budgets"):
        StoredAnswerEvaluation(target, {"math": [answers]}, budgets=(0,))
    greedy = answer_prompts(target, sets["chat"])
    with pytest.raises(ValueError, match=r"different temperatures: \[\(0.0,\), \(0.7,\)\]"):
        StoredAnswerEvaluation(target, {"math": [answers], "chat": [greedy]})
    for none in ({}, {"math": []}):
        with pytest.raises(ValueError, match="at least one set"):
            StoredAnswerEvaluation(target, none)


@pytest.mark.slow
def test_a_runs_own_figures_are_pooled(models: Path) -> None:
    import torch
    from jetflow_core.head.checkpoint import load_head
    from jetflow_train.evaluation.after_training import evaluate_sets, pooled_top1
    from jetflow_train.target import load_target

    target = load_target(models / "target", torch.device("cpu"), torch.float32)
    head = load_head(models / "a/head").head
    sets = {"one": [np.arange(1, 9)], "two": [np.arange(5, 20), np.arange(30, 33)]}
    told: list[str] = []
    # Greedy ones are there whether they are asked for or not.
    results = evaluate_sets(target, head, sets, told.append, temperatures=(0.7,))
    assert told[0] == "the target's answers are decoded with masked attention on cpu"
    assert [len(told), told[1].startswith("one path: chain ")] == [13, True]
    assert told[6].startswith("one at 0.7 prompt lookup: ")
    assert list(results) == ["one", "one at 0.7", "two", "two at 0.7"]
    for name, each in results.items():
        assert each["prompts"] == len(sets[name.removesuffix(" at 0.7")])
        assert each["temperature"] == (0.7 if name.endswith("0.7") else 0.0)
        assert each["prompt_lookup"]["tau"] >= 1 >= each["loop_share"] >= 0
        for kind in ("path", "marginal"):
            found = each[kind]
            assert list(found["tau"]) == ["chain", "16", "64", "256"]
            assert found["tau_without_loops"]["chain"] >= 1
            for trees, walked in found["walks"].items():
                assert walked["tokens"] == each["tokens"]
                depths, ranks = found["accepted_by_depth"][trees], found["accepted_by_rank"][trees]
                assert depths["reached"] == sorted(depths["reached"], reverse=True)
                accepted = walked["tokens"] - walked["rounds"]
                assert sum(depths["accepted"]) == sum(ranks) == accepted
    right = sum(results[name]["path"]["top1_right"][0] for name in sets)
    places = sum(results[name]["path"]["top1_places"][0] for name in sets)
    assert pooled_top1(results)[0] == round(right / places, 4)
    assert pooled_top1({}) == ()
    assert json.loads(json.dumps(results)) == results
