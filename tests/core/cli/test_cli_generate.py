"""``jetflow generate`` and ``jetflow tree`` on the tiny target."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.commands.screen import Screen
from jetflow_core.engine import Engine, TreeOptions, load
from jetflow_core.reports.loops import looping_tail
from jetflow_core.reports.prompt_lookup import prompt_lookup_tau
from jetflow_core.sampling import SamplingParams
from rich.console import Console

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def models(tiny_folder: Path, make_head: Callable[..., Path]) -> tuple[Any, ...]:
    return (
        "--target", tiny_folder, "--head", make_head(), "--device", "cpu", "--dtype", "float32",
    )  # fmt: skip


@pytest.fixture
def engine(models: tuple[Any, ...]) -> Engine:
    import torch

    return load(models[1], models[3], dtype=torch.float32)


def _text(engine: Engine, prompt: str, **params: Any) -> str:
    found = engine.generate(engine.encode(prompt), SamplingParams(**params), TreeOptions(budget=1))
    return found.text


def test_text_then_one_line(jetflow: Call, models: tuple[Any, ...], engine: Engine) -> None:
    code, out, err = jetflow("generate", "Count.", *models, "--budget", 8, "--max-new-tokens", 20)
    assert (code, err) == (0, "")
    text, _, line = out.rstrip("\n").rpartition("\n")
    assert text == _text(engine, "Count.", max_new_tokens=20)
    assert re.match(r"20 tokens in \d+ rounds; tau \d\.\d\d \(prompt lookup ", line)
    for words in ("tokens/s", "budget 8", "float32 on cpu", "target tiny", "head head"):
        assert words in line
    assert "\x1b" not in out


def test_every_sampling_option_arrives(
    jetflow: Call, models: tuple[Any, ...], engine: Engine, tmp_path: Path
) -> None:
    file = tmp_path / "stats.json"
    options = (
        "--temperature", 0.8, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.001,
        "--repetition-penalty", 1.1, "--frequency-penalty", 0.1, "--presence-penalty", -0.1,
        "--logit-bias", "5=-2.5", "--logit-bias", "7=1", "--bad-word", "a", "--min-new-tokens", 2,
        "--stop", "zzz", "--stop", "yyy", "--stop-token-id", 126, "--ignore-eos", "--seed", 11,
        "--logprobs", 2, "--max-new-tokens", 12,
    )  # fmt: skip
    code, out, _ = jetflow("generate", "Count.", *models, "--budget", 4, *options, "--stats", file)
    assert code == 0
    payload = json.loads(file.read_text())
    expected = {
        "temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.001,
        "repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": -0.1,
        "logit_bias": {"5": -2.5, "7": 1.0}, "min_new_tokens": 2, "stop": ["zzz", "yyy"],
        "stop_token_ids": [126], "ignore_eos": True, "seed": 11, "logprobs": 2,
        "max_new_tokens": 12,
    }  # fmt: skip
    sampling = payload["sampling"]
    assert {name: sampling[name] for name in expected} == expected
    spelled = [engine.target.tokenizer.encode(word) for word in ("a", " a")]
    assert sampling["bad_words"] == spelled
    found = engine.generate(
        engine.encode("Count."),
        SamplingParams(
            **{**expected, "logit_bias": {5: -2.5, 7: 1.0}, "stop": ("zzz", "yyy"),
               "stop_token_ids": (126,), "bad_words": tuple(map(tuple, spelled))}
        ),
        TreeOptions(budget=1),
    )  # fmt: skip
    assert tuple(payload["prompts"][0]["tokens"]) == found.tokens
    assert out.count(" logprob ") == len(found.tokens)
    assert "seed 11" in out
    reported = [entry["logprob"] for entry in payload["prompts"][0]["logprobs"]]
    assert reported == pytest.approx([pick.logprob for pick in found.picks], abs=1e-4)


def test_stats_add_up(jetflow: Call, models: tuple[Any, ...], tmp_path: Path) -> None:
    file = tmp_path / "stats.json"
    code, out, _ = jetflow(
        "generate", "One", "Two", *models, "--budget", 6, "--max-new-tokens", 30,
        "--compare", "--check-lossless", "--stats", file,
    )  # fmt: skip
    assert code == 0
    assert "[1/2] One" in out and "[2/2] Two" in out
    assert out.count("times plain decoding") == 2
    payload = json.loads(file.read_text())
    tokens = rounds = 0
    for prompt in payload["prompts"]:
        sizes = [len(r["tokens"]) for r in prompt["rounds"]]
        assert [t for r in prompt["rounds"] for t in r["tokens"]] == prompt["tokens"]
        assert all(r["accepted"] < size + 1 and r["rows"] <= 6
                   for r, size in zip(prompt["rounds"], sizes, strict=True))  # fmt: skip
        figures = prompt["figures"]
        assert figures["tau"] == len(prompt["tokens"]) / len(sizes)
        assert figures["prompt_lookup"]["tau"] == prompt_lookup_tau(
            prompt["prompt_tokens"], prompt["tokens"]
        )
        looping = len(prompt["tokens"]) - looping_tail(prompt["tokens"])
        assert figures["loop_share"] == looping / len(prompt["tokens"])
        assert prompt["identical_to_plain"] is True
        assert prompt["plain"]["tokens"] == prompt["tokens"]
        phases = sum(prompt["speed"]["phase_seconds"].values())
        assert phases == pytest.approx(prompt["speed"]["seconds"], rel=0.2)
        tokens, rounds = tokens + len(prompt["tokens"]), rounds + len(sizes)
    assert payload["figures"]["tau"] == tokens / rounds
    assert payload["acceptance"]["tokens"] == tokens
    assert payload["acceptance"]["rounds"] == rounds
    assert "tau = " in payload["figures"]["formula"]
    assert payload["plain"]["speed_up"] > 0
    assert payload["trees"] == {"budget": 6, "depth": None, "builder": "BestFirst"}
    assert payload["provenance"]["device"] == "cpu"
    assert [entry.name for entry in tmp_path.glob("*.json")] == ["stats.json"]


def test_prompts_come_from_stdin_and_raw_skips_the_template(
    jetflow: Call, models: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stats.json"
    monkeypatch.setattr("sys.stdin", io.StringIO("-7 apples\n"))
    code, _, _ = jetflow(
        "generate", "-", "--raw", *models, "--budget", 1, "--max-new-tokens", 2, "--stats", file
    )
    assert code == 0
    prompt = json.loads(file.read_text())["prompts"][0]
    assert prompt["prompt"] == "-7 apples\n"
    assert len(prompt["prompt_tokens"]) == len("-7 apples\n")


@pytest.mark.parametrize("builder", ["all-children", "chain"])
def test_builders_and_depth_are_used(
    jetflow: Call, models: tuple[Any, ...], tmp_path: Path, builder: str
) -> None:
    file = tmp_path / "stats.json"
    code, _, _ = jetflow(
        "generate", "Go", *models, "--budget", 8, "--builder", builder, "--depth", 2,
        "--max-new-tokens", 10, "--stats", file,
    )  # fmt: skip
    assert code == 0
    rounds = json.loads(file.read_text())["prompts"][0]["rounds"]
    assert max(r["tree_depth"] for r in rounds) == 2
    assert max(r["rows"] for r in rounds) == (3 if builder == "chain" else 8)


def test_budget_auto_and_no_tokens_at_all(jetflow: Call, models: tuple[Any, ...]) -> None:
    code, out, _ = jetflow("generate", "Go", *models, "--max-new-tokens", 6)
    assert code == 0
    assert "budget auto (" in out
    code, out, _ = jetflow("generate", "Go", *models, "--max-new-tokens", 0, "--compare")
    assert code == 0
    assert "0 tokens in 0 rounds; tau 0.00" in out


def test_a_target_without_a_head_decodes_plainly(jetflow: Call, tiny_folder: Path) -> None:
    code, out, _ = jetflow(
        "generate", "Go", "--target", tiny_folder, "--device", "cpu", "--budget", 1,
        "--max-new-tokens", 5,
    )  # fmt: skip
    assert code == 0
    assert "head none" in out


def _screen_on_a_terminal(no_color: bool) -> tuple[Screen, io.StringIO]:
    screen, file = Screen(), io.StringIO()
    screen._out = Console(
        file=file, force_terminal=True, no_color=no_color, color_system="standard",
        highlight=False, soft_wrap=True, markup=False, width=20,
    )  # fmt: skip
    return screen, file


def test_accepted_tokens_are_coloured_on_a_terminal_only() -> None:
    screen, file = _screen_on_a_terminal(no_color=False)
    screen.piece("one [two]", True)
    screen.piece(" a line that is longer than the terminal", False)
    assert file.getvalue() == "\x1b[32mone [two]\x1b[0m a line that is longer than the terminal"
    screen, file = _screen_on_a_terminal(no_color=True)
    screen.piece("one", True)
    assert file.getvalue() == "one"


def test_a_heading_waits_for_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen() as screen:
        screen.heading("[1/2] x")
        assert capsys.readouterr().out == ""
        screen.piece("text", False)
        screen.line()
    assert capsys.readouterr().out == "[1/2] x\ntext\n"


def test_trees_are_drawn_in_three_ways(jetflow: Call, models: tuple[Any, ...]) -> None:
    drawn = {}
    for style in ("text", "dot", "mermaid"):
        code, out, err = jetflow(
            "tree", "Count.", *models, "--rounds", 2, "--budget", 5, "--format", style
        )
        assert (code, err) == (0, "")
        drawn[style] = out
    assert drawn["text"].count("then the target's own: ") == 2
    assert "round 1: 5 rows, " in drawn["text"]
    assert drawn["dot"].count("digraph tree {") == 2
    assert drawn["mermaid"].count("graph TD") == 2


def test_token_labels_can_be_seen(models: tuple[Any, ...], engine: Engine) -> None:
    from jetflow_core.commands.drawing import Label

    tokenizer = engine.target.tokenizer
    label = Label(tokenizer)
    names = [label(token) for token in tokenizer.encode(" \n'a")]
    assert names == ["' '", "'\\n'", '"\'"', "'a'"]
    assert label(0) == "'<eos>'"
    assert label(127) == "'None'"
