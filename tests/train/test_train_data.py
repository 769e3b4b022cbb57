"""Answers, shards and packing: what training reads is exactly what the target wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jetflow_core.offline import Answer, MaskedAttention, RowBackend
from jetflow_train import regenerate as regeneration
from jetflow_train.answering import AnswerSettings, Question, answers, as_corpus
from jetflow_train.draws import ANSWER_TOKENS, AnswerDraws, generator
from jetflow_train.packing import build_batch, depth_weights, pack
from jetflow_train.prompts import PromptSet, read_prompts
from jetflow_train.regenerate import RegenerateConfig, plan, regenerate
from jetflow_train.shards import (
    Corpus,
    DataMismatchError,
    load_corpus,
    read_manifest,
    write_manifest,
)
from jetflow_train.target import FrozenTarget, UnsupportedTargetError, from_model

CPU = torch.device("cpu")
STOP = 5


def make_target(tiny_model: Callable[..., Any], kind: str) -> tuple[Any, FrozenTarget]:
    model = tiny_model(kind, eos_token_id=STOP)
    model.generation_config.eos_token_id = STOP
    model.generation_config.pad_token_id = STOP
    return model, from_model(model, CPU)


def make_prompts(count: int = 10, seed: int = 0) -> PromptSet:
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(6, 128, size=int(n)) for n in rng.integers(1, 12, size=count)]
    return PromptSet(tokens=tokens, provenance={"files": {"p": "0"}})


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_greedy_answers_are_those_of_transformers(
    tiny_model: Callable[..., Any], kind: str
) -> None:
    model, target = make_target(tiny_model, kind)
    prompts = make_prompts(6).tokens
    settings = AnswerSettings(max_new_tokens=24, rows=4)
    questions = [(i, Question(prompt=i, temperature=0.0)) for i in range(6)]
    found = {each.number: each for each in answers(target, prompts, questions, settings, 12)}
    assert sorted(found) == list(range(6))
    for i, prompt in enumerate(prompts):
        inputs = torch.from_numpy(prompt)[None]
        plain = model.generate(
            inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=24, do_sample=False
        )
        assert found[i].tokens.tolist() == plain[0, len(prompt) :].tolist()


def test_the_attention_that_decodes_is_told_and_can_be_given(
    tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    _, target = make_target(tiny_model, "llama")
    config, told, calls = RegenerateConfig(rows=4, max_new_tokens=4), [], []

    def counted(*arguments: Any) -> torch.Tensor:
        calls.append(len(arguments))
        return MaskedAttention()(*arguments)

    for folder, backend in (("a", None), ("b", RowBackend("counted", counted))):
        regenerate(
            target, make_prompts(4), tmp_path / folder, config, backend=backend, report=told.append
        )
    lines = [line for line in told if "attention" in line]
    assert lines == [
        f"the target's answers are decoded with {name} attention on cpu"
        for name in ("masked", "counted")
    ]
    assert set(calls) == {5}
    found = [read_manifest(tmp_path / folder) for folder in ("a", "b")]
    assert found[0] == found[1]


def test_a_long_shard_is_not_silent(
    tiny_model: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, target = make_target(tiny_model, "llama")
    config = RegenerateConfig(rows=2, max_new_tokens=2, temperatures=(0.0,), shard_rows=4)
    monkeypatch.setattr(regeneration, "SILENCE", 0.0)
    told: list[str] = []
    regenerate(target, make_prompts(6), tmp_path / "out", config, report=told.append)
    between = [line for line in told if line.endswith("left") and "shard" not in line]
    # All but the last answer, behind which nothing is left to tell of.
    assert [line.split(" ")[0] for line in between] == ["1", "2", "3", "4", "5"]
    assert all(" of 6 answers, " in line and " tokens/s, " in line for line in between)
    assert [line[:15] for line in told if "written" in line] == [
        f"shard {n} written" for n in (0, 1)
    ]


def test_loops_are_cut_from_greedy_answers_that_did_not_end() -> None:
    loop = np.asarray([9, *[7, 8] * 20])
    questions = {
        3: Question(prompt=0, temperature=0.0),
        4: Question(prompt=0, temperature=0.0),
        5: Question(prompt=0, temperature=0.7),
    }
    found = {n: Answer(n, loop, finished=n == 4) for n in questions}
    corpus = as_corpus([np.asarray([1, 2])], questions, found)
    assert corpus.sequence(0).tolist() == [1, 2, 9, 7, 8]
    assert corpus.sequence(1).tolist() == corpus.sequence(2).tolist() == [1, 2, *loop]
    assert corpus.finished.tolist() == [False, True, False]
    np.testing.assert_array_equal(corpus.temperature, np.float32([0, 0, 0.7]))


@pytest.mark.slow
def test_a_killed_run_goes_on_exactly(tiny_model: Callable[..., Any], tmp_path: Path) -> None:
    _, target = make_target(tiny_model, "llama")
    prompts, config = (
        make_prompts(30),
        RegenerateConfig(rows=4, max_new_tokens=12, temperatures=(0.0, 1.0), shard_rows=16),
    )
    whole = regenerate(target, prompts, tmp_path / "whole", config, report=_quiet)
    assert whole["complete"] and whole["jobs"]["answered"] == 60
    regenerate(target, prompts, tmp_path / "cut", config, max_seconds=1e-9, report=_quiet)
    half = read_manifest(tmp_path / "cut")
    assert half is not None and not half["complete"]
    # A shard that no manifest lists is what a kill leaves behind.
    (tmp_path / "cut" / "tokens-000001.safetensors").write_bytes(b"half")
    rest = regenerate(target, prompts, tmp_path / "cut", config, report=_quiet)
    assert {e["name"]: e["sha256"] for e in rest["shards"]} == {
        e["name"]: e["sha256"] for e in whole["shards"]
    }


@pytest.mark.parametrize("call", ["save_shard", "write_manifest"])
@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("before", [True, False])
def test_a_kill_at_any_write_loses_and_doubles_nothing(
    tiny_model: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    at: int,
    before: bool,
) -> None:
    _, target = make_target(tiny_model, "llama")
    prompts = make_prompts(9)
    config = RegenerateConfig(rows=3, max_new_tokens=4, temperatures=(0.0, 1.0), shard_rows=5)
    whole = regenerate(target, prompts, tmp_path / "whole", config, report=_quiet)
    calls, real = [0], getattr(regeneration, call)

    def killed(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == at + 1 and before:
            raise KeyboardInterrupt
        done = real(*arguments)
        if calls[0] == at + 1:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(regeneration, call, killed)
        regenerate(target, prompts, tmp_path / "cut", config, report=_quiet)
    rest = regenerate(target, prompts, tmp_path / "cut", config, report=_quiet)
    assert sorted(e["index"] for e in rest["shards"]) == list(range(4))
    assert {e["name"]: e["sha256"] for e in rest["shards"]} == {
        e["name"]: e["sha256"] for e in whole["shards"]
    }
    assert rest["jobs"] == whole["jobs"] == {
        "asked": 18, "skipped": 0, "answered": 18, "missing": 0
    }  # fmt: skip


def test_other_targets_settings_and_damage_are_refused(
    tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    _, target = make_target(tiny_model, "llama")
    _, other = make_target(tiny_model, "qwen3")
    prompts, config = make_prompts(4), RegenerateConfig(rows=4, max_new_tokens=4)
    regenerate(target, prompts, tmp_path, config, report=_quiet)
    assert len(load_corpus([tmp_path], target.fingerprint)) == 12
    with pytest.raises(DataMismatchError, match="target"):
        load_corpus([tmp_path], other.fingerprint)
    with pytest.raises(DataMismatchError, match="target"):
        regenerate(other, prompts, tmp_path, config, report=_quiet)
    with pytest.raises(DataMismatchError, match="generation"):
        regenerate(
            target,
            prompts,
            tmp_path,
            RegenerateConfig(rows=4, max_new_tokens=5),
            report=_quiet,
        )
    shard = next(tmp_path.glob("tokens-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataMismatchError, match="checksum"):
        load_corpus([tmp_path], target.fingerprint)
    with pytest.raises(DataMismatchError, match="no manifest"):
        load_corpus([tmp_path / "nothing"], target.fingerprint)


@pytest.mark.parametrize("manifest", [{}, {"target": {}, "shards": [3]}, {"target": 1}])
def test_a_manifest_that_lacks_something_is_named(tmp_path: Path, manifest: dict[str, Any]) -> None:
    write_manifest(tmp_path, manifest)
    with pytest.raises(DataMismatchError, match=r"manifest\.json (names no|lists a shard without)"):
        load_corpus([tmp_path], {})


def test_a_folder_without_shards_is_named(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"target": {}, "shards": []})
    with pytest.raises(DataMismatchError, match="holds no shards"):
        load_corpus([tmp_path], {})


def test_prompts_that_are_all_too_long_are_refused(
    tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    _, target = make_target(tiny_model, "llama")
    prompts = PromptSet(tokens=[np.full(9, 7)], provenance={"files": {}})
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="no prompt of 1 to 8 tokens"):
        regenerate(target, prompts, out, RegenerateConfig(max_prompt_tokens=8), report=_quiet)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"max_seconds {seconds} is out of range"):
            regenerate(target, prompts, out, RegenerateConfig(), max_seconds=seconds, report=_quiet)
    assert not out.exists()


def test_every_seed_draws_its_own_numbers() -> None:
    seeds = (0, 1, 2**53, 2**53 + 1, 2**63, 2**64 - 2, 2**64 - 1)
    drawn = {generator(ANSWER_TOKENS, seed, 5).random() for seed in seeds}
    assert len(drawn) == len(seeds)


def test_an_answers_numbers_depend_on_seed_question_and_place_alone() -> None:
    numbers = [0, 1, 63, 64, 65, 500]
    draws, longer = AnswerDraws(3, 40), AnswerDraws(3, 90)
    first = {number: draws.of(number).copy() for number in numbers}
    for number in reversed(numbers):
        assert np.array_equal(draws.of(number), first[number])
        assert np.array_equal(longer.of(number)[:40], first[number])
        assert np.array_equal(AnswerDraws(3, 40).of(number), first[number])
    assert len({*np.concatenate(list(first.values())).tolist()}) == 40 * len(numbers)
    assert not np.array_equal(AnswerDraws(4, 40).of(0), first[0])


def test_an_answers_numbers_are_uniform() -> None:
    draws = AnswerDraws(0, 160)
    drawn = np.stack([draws.of(number) for number in range(1000)])
    assert drawn.dtype == np.float32
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.bincount((drawn.ravel() * 64).astype(np.int64), minlength=64)
    expected = drawn.size / 64
    # Chi-square with 63 degrees of freedom: above 120 once in 50,000 seeds.
    assert ((counts - expected) ** 2 / expected).sum() < 120
    # Neighbours, in the place and in the question, know nothing of one another.
    for left, right in ((drawn[:, 1:], drawn[:, :-1]), (drawn[1:], drawn[:-1])):
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 0.012


def test_an_unknown_architecture_is_refused(tiny_model: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedTargetError, match="qwen3_moe"):
        from_model(tiny_model("qwen3_moe", dtype=torch.float32), CPU)


def test_prompt_files_name_the_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"prompt": "a"}) + "\n" + json.dumps({"text": "b"}) + "\n")
    assert read_prompts([path], limit=1) == ["a"]
    strange = tmp_path / "strange.jsonl"
    strange.write_text(json.dumps({"prompt": "a\u2028b"}, ensure_ascii=False) + "\n")
    assert read_prompts([strange]) == ["a\u2028b"]
    with pytest.raises(ValueError, match=r"p\.jsonl:2"):
        read_prompts([path])


@given(lengths=st.lists(st.integers(0, 9), max_size=40), seed=st.integers(0, 3))
def test_the_plan_asks_every_question_once(lengths: list[int], seed: int) -> None:
    config = RegenerateConfig(seed=seed, max_prompt_tokens=8, temperatures=(0.0, 0.7, 1.0))
    asked = [(question.prompt, question.temperature) for question in plan(lengths, config)]
    kept = [i for i, n in enumerate(lengths) if 1 <= n <= 8]
    assert sorted(asked) == sorted((i, t) for i in kept for t in config.temperatures)


def corpus_of(pairs: list[tuple[int, int]]) -> Corpus:
    rng = np.random.default_rng(0)
    return Corpus.of(
        [rng.integers(0, 100, size=p) for p, _ in pairs],
        [rng.integers(0, 100, size=a) for _, a in pairs],
        np.zeros(len(pairs), np.float32),
        np.zeros(len(pairs), np.bool_),
    )


@given(
    pairs=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 20)), min_size=1, max_size=60),
    seed=st.integers(0, 3),
)
def test_packing_keeps_sequences_whole(pairs: list[tuple[int, int]], seed: int) -> None:
    width, depth, corpus = 24, 5, corpus_of(pairs)
    rows = pack(corpus, width, seed, 0)
    usable = [i for i, (p, a) in enumerate(pairs) if min(p + a, width) - p >= 2]
    assert sorted(i for row in rows for i in row.tolist()) == usable
    if not rows:
        return
    batch = build_batch(corpus, rows, width=width, anchors=7, depth=depth, key=(seed, 3))
    for r, row in enumerate(rows):
        for number, sequence in enumerate(row.tolist()):
            here = batch.documents[r] == number
            text = corpus.sequence(sequence)[:width]
            assert batch.tokens[r][here].tolist() == text.tolist()
            assert batch.positions[r][here].tolist() == list(range(len(text)))
        for anchor, reach in zip(batch.anchors[r], batch.reach[r], strict=True):
            number = batch.documents[r, anchor]
            columns = np.flatnonzero(batch.documents[r] == number)
            prompt = corpus.prompt_len[row[number]]
            assert columns[0] + prompt - 1 <= anchor < columns[-1]
            # The deepest teacher is the last column that still has a token behind it.
            assert reach == min(depth, columns[-1] - anchor)
    again = build_batch(corpus, rows, width=width, anchors=7, depth=depth, key=(seed, 3))
    assert (again.anchors == batch.anchors).all()


def test_weights_follow_the_depth() -> None:
    weights = depth_weights(np.asarray([[2, 3]]), 3, gamma=4.0)
    assert np.allclose(weights[0], np.exp(-np.asarray([[0, 1, np.inf], [0, 1, 2]]) / 4))
    assert (depth_weights(np.zeros((1, 2), np.int64), 3, gamma=4.0) == 0).all()
    flat = depth_weights(np.asarray([[2, 3]]), 3, gamma=0.0)
    assert flat.tolist() == [[[1, 1, 0], [1, 1, 1]]]
    with pytest.raises(ValueError, match="gamma"):
        depth_weights(np.zeros((1, 2), np.int64), 3, gamma=-1.0)


def _quiet(text: str) -> None:
    assert text
