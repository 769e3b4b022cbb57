"""Each bad input: exit code 2, one clear line on stderr, nothing on stdout, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.head.checkpoint import HeadInfo
from safetensors.torch import load_file, save_file

Call = Callable[..., tuple[int, str, str]]


@dataclass
class World:
    """What the cases are made of."""

    target: Path
    make_head: Callable[..., Path]
    folder: Path

    def command(self, name: str, *options: object, head: Path | str | None = None) -> list[str]:
        """A command that would succeed but for ``options``, which replace its own."""
        words: list[object] = [name] if name == "doctor" else [name, "hi"]
        own = {
            "--target": self.target,
            "--head": head or self.make_head(),
            "--device": "cpu",
            "--dtype": "float32",
        }
        own |= {} if name == "doctor" else {"--budget": 4}
        own |= {"--max-new-tokens": 4} if name == "generate" else {}
        for option, value in own.items():
            if option not in options:
                words += [option, value]
        return [str(word) for word in (*words, *options)]


@pytest.fixture
def world(tiny_folder: Path, make_head: Callable[..., Path], tmp_path: Path) -> World:
    return World(tiny_folder, make_head, tmp_path)


Case = Callable[[World], list[str]]


def _options(*options: object) -> Case:
    return lambda w: w.command("generate", *options)


def _head(**fields: Any) -> Case:
    return lambda w: w.command("generate", head=w.make_head(**fields))


def _doctor_head(**fields: Any) -> Case:
    return lambda w: w.command("doctor", head=w.make_head(**fields))


def _with(head: Path, damage: Callable[[Path], None]) -> Path:
    damage(head)
    return head


def _damaged(damage: Callable[[Path], None]) -> Case:
    return lambda w: w.command("generate", head=_with(w.make_head(), damage))


def _cut(head: Path) -> None:
    file = head / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _poison(head: Path) -> None:
    tensors = load_file(head / "model.safetensors")
    tensors["norm.weight"][3] = float("nan")
    save_file(tensors, head / "model.safetensors")


def _overflow(head: Path) -> None:
    """Finite weights whose product is not."""
    tensors = load_file(head / "model.safetensors")
    tensors["norm.weight"][:] = 3e38
    save_file(tensors, head / "model.safetensors")


def _edit_config(**changes: Any) -> Callable[[Path], None]:
    def edit(head: Path) -> None:
        raw = json.loads((head / "config.json").read_text())
        (head / "config.json").write_text(json.dumps(raw | changes))

    return edit


def _unknown_format(head: Path) -> None:
    raw = json.loads((head / "config.json").read_text())
    raw["jetflow"]["format"] = 99
    (head / "config.json").write_text(json.dumps(raw))


def _target(**config: Any) -> Case:
    def case(w: World) -> list[str]:
        folder = w.folder / "other-target"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        return ["generate", "hi", "--target", str(folder)]

    return case


def _other_tokenizer(w: World) -> list[str]:
    info = HeadInfo(target="another", tokenizer_sha256="ab" * 32)
    return w.command("generate", head=w.make_head(info=info))


CASES: dict[str, tuple[Case, str]] = {
    # the head and its target
    "hidden size": (_head(hidden_size=32), "hidden size is 32; this target's is 64"),
    "vocabulary": (_head(vocab_size=130), "vocabulary is 130; this target's is 128"),
    "layers": (_head(num_target_layers=5), "number of layers is 5; this target's is 4"),
    "tokenizer": (_other_tokenizer, "fingerprint abababababab; this target's is"),
    "doctor: vocabulary": (_doctor_head(vocab_size=130), "vocabulary is 130"),
    "doctor: logits not finite": (
        lambda w: w.command("doctor", head=_with(w.make_head(), _overflow)),
        "logits that are not finite"),
    "doctor: no head": (
        lambda w: ["doctor", "--target", str(w.target)], "no head to examine"),
    "no such head": (
        lambda w: w.command("generate", head="no-such-head"), "the folder does not exist"),
    "no config": (_damaged(lambda head: (head / "config.json").unlink()), "config.json is missing"),
    "config no JSON": (
        _damaged(lambda head: (head / "config.json").write_text("{")), "is no JSON"),
    "no weights": (
        _damaged(lambda head: (head / "model.safetensors").unlink()),
        "model.safetensors is missing"),
    "truncated weights": (_damaged(_cut), "model.safetensors cannot be read"),
    "weights not finite": (_damaged(_poison), "norm.weight holds values that are not finite"),
    "logits not finite": (_damaged(_overflow), "logits that are not finite"),
    "other shapes": (_damaged(_edit_config(intermediate_size=100)), "the config says"),
    "unknown head format": (_damaged(_unknown_format), "head format 99 is unknown"),
    "unknown architecture": (
        _damaged(_edit_config(architectures=["GPT2"])), "no draft head known here"),
    # the target
    "no such target": (
        lambda w: ["generate", "hi", "--target", str(w.folder / "none")],
        "cannot load a target from"),
    "recurrent target": (_target(model_type="mamba", num_hidden_layers=2), "mamba"),
    "encoder": (_target(model_type="t5"), "encoder-decoder"),
    "target without weights": (
        _target(model_type="qwen3", num_hidden_layers=2, hidden_size=32), "cannot load a target"),
    # options
    "unknown option": (_options("--bugdet", 4), "Unknown option"),
    "unknown command": (lambda w: ["genrate", "hi"], "unknown command 'genrate'; commands:"),
    "no prompt": (lambda w: ["generate"], "no prompt"),
    "empty raw prompt": (
        lambda w: ["generate", "", *w.command("generate", "--raw")[2:]], "holds no token"),
    "stdin twice": (lambda w: ["generate", "-", "-"], "- specified multiple times"),
    "budget 0": (_options("--budget", 0), "budget 0 is out of range: 1 to 256"),
    "budget -3": (_options("--budget", -3), "budget -3 is out of range"),
    "budget 257": (_options("--budget", 257), "budget 257 is out of range"),
    "budget abc": (_options("--budget", "abc"), "budget 'abc' is no whole number"),
    "auto with another builder": (
        _options("--budget", "auto", "--builder", "chain"), "budget auto needs"),
    "builder": (_options("--builder", "random"), "best-first"),
    "depth 0": (_options("--depth", 0), "depth 0 is out of range"),
    "depth too deep": (_options("--depth", 6), "depth 6 is out of range: this drafter goes to 5"),
    "temperature nan": (_options("--temperature", "nan"), "temperature must be a finite number"),
    "temperature -1": (_options("--temperature", -1), "temperature must be a finite number"),
    "temperature word": (_options("--temperature", "warm"), "warm"),
    "top-p 2": (_options("--top-p", 2), "top_p must be"),
    "top-k -1": (_options("--top-k", -1), "top_k must be"),
    "penalty 0": (_options("--repetition-penalty", 0), "repetition_penalty must be"),
    "max-new-tokens -1": (_options("--max-new-tokens", -1), "max_new_tokens must be"),
    "min above max": (_options("--min-new-tokens", 9), "min_new_tokens must be"),
    "logit bias form": (_options("--logit-bias", "5"), "logit-bias '5' is not of the form"),
    "logit bias id": (_options("--logit-bias", "500=1"), "token id 500 is not in 0 to 127"),
    "logit bias inf": (_options("--logit-bias", "5=inf"), "must be a finite number"),
    "stop token id": (_options("--stop-token-id", 128), "token id 128 is not in 0 to 127"),
    "empty stop": (_options("--stop", ""), "stop must hold non-empty strings"),
    "empty bad word": (_options("--bad-word", " "), "non-empty strings"),
    "seed": (_options("--seed", -1), "seed must be"),
    "logprobs": (_options("--logprobs", 129), "at most the vocabulary size 128"),
    "threads": (_options("--threads", 0), "threads 0 is out of range"),
    "device": (_options("--device", "abacus"), "device 'abacus' cannot be used here"),
    "dtype": (_options("--dtype", "int4"), "bfloat16"),
    "context too long": (
        lambda w: ["generate", "short", "x" * 300, *w.command("generate")[2:]],
        "the prompt has 300 tokens; the target's context of 256"),
    "stats folder": (
        lambda w: w.command("generate", "--stats", w.folder / "none" / "s.json"),
        "does not exist"),
    "stats is a folder": (
        lambda w: w.command("generate", "--stats", w.folder), "it is a folder"),
    "tree format": (lambda w: w.command("tree", "--format", "png"), "mermaid"),
    "tree rounds": (lambda w: w.command("tree", "--rounds", 0), "rounds 0 is out of range"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_line_and_exit_code_2(name: str, world: World, jetflow: Call) -> None:
    case, expected = CASES[name]
    arguments = case(world)
    before = sorted(world.folder.rglob("*"))
    code, out, err = jetflow(*arguments)
    assert code == 2, err
    assert len(err.splitlines()) == 1, err
    assert err.startswith("jetflow: ")
    assert expected in err
    assert out == ""
    assert sorted(world.folder.rglob("*")) == before


def test_a_file_of_figures_survives_a_failed_run(world: World, jetflow: Call) -> None:
    file = world.folder / "stats.json"
    file.write_text("{}")
    head = world.make_head()
    _overflow(head)
    code, _, _ = jetflow(*world.command("generate", "--stats", file, head=head))
    assert code == 2
    assert file.read_text() == "{}"
    assert not list(world.folder.glob(".*"))


@pytest.mark.slow
def test_a_process_of_its_own_says_one_line_too(world: World) -> None:
    """What libraries print while the models load must not be on stderr either."""
    arguments = world.command("generate", "--logprobs", "129")
    done = subprocess.run(
        [sys.executable, "-m", "jetflow_core.cli", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
