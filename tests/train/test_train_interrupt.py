"""A run that is interrupted goes on as if nothing had been; evaluation changes no step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.cli import run_app
from jetflow_core.head.checkpoint import load_head
from jetflow_core.head.model import DraftHead
from jetflow_train import stopwatch
from jetflow_train.cli import build
from jetflow_train.schedule import Horizon
from jetflow_train.shards import Corpus, save_shard, write_manifest
from jetflow_train.signals import INTERRUPTED, stop_requests
from jetflow_train.stopwatch import Stopwatch
from jetflow_train.target import load_target


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_its_step(
    new_run: Callable[..., Any], tmp_path: Path, number: signal.Signals
) -> None:
    straight, cut = new_run(tmp_path / "a"), new_run(tmp_path / "b")
    straight.run(Horizon(steps=6), report=_quiet)
    before = signal.getsignal(number)
    with stop_requests() as asked:
        # Raised in the middle of a step's work, from its report.
        progress = cut.run(
            Horizon(steps=6),
            log_every=2,
            stop_asked=asked,
            report=lambda _: os.kill(os.getpid(), number),
        )
        assert signal.getsignal(number) is signal.SIG_DFL
    assert signal.getsignal(number) is before
    assert (progress.interrupted, progress.step) == (True, 2)
    resumed = new_run(tmp_path / "b")
    done = resumed.run(Horizon(steps=6), report=_quiet)
    assert (done.interrupted, done.step) == (False, 6)
    _same_bits(straight.head, resumed.head)


def test_a_wish_to_stop_before_the_first_step_leaves_no_state(
    new_run: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = new_run(tmp_path)
    assert trainer.run(Horizon(steps=2), stop_asked=lambda: True, report=_quiet).interrupted
    assert not list(tmp_path.glob("*.pt"))


def test_other_threads_get_no_signals() -> None:
    answers = []

    def ask() -> None:
        with stop_requests() as asked:
            answers.append(asked())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert answers == [False]


def test_evaluation_changes_no_step_and_takes_no_training_time(
    new_run: Callable[..., Any], tmp_path: Path
) -> None:
    def evaluate(head: DraftHead, step: int) -> dict[str, float]:
        seen.append(step)
        time.sleep(0.2)
        with torch.no_grad():
            for weight in head.parameters():
                weight.fill_(1.0)
        return {"tau": 1.5 + torch.rand(()).item(), "steps": float(step)}

    seen: list[int] = []
    plain, looked = new_run(tmp_path / "a"), new_run(tmp_path / "b")
    plain.run(Horizon(steps=5), report=_quiet)
    began = time.monotonic()
    progress = looked.run(
        Horizon(steps=5), log_every=2, evaluate=evaluate, evaluate_seconds=0.0, report=_quiet
    )
    took = time.monotonic() - began
    _same_bits(plain.head, looked.head)
    assert seen == [0, 1, 2, 3, 4]
    assert progress.seconds < took - 0.2 * len(seen)
    text = (tmp_path / "b" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(line["kind"], line["step"]) for line in lines] == [
        ("evaluation", 0), ("evaluation", 1), ("steps", 2), ("evaluation", 2), ("evaluation", 3),
        ("steps", 4), ("evaluation", 4), ("steps", 5),
    ]  # fmt: skip
    found = [line["values"]["steps"] for line in lines if line["kind"] == "evaluation"]
    assert found == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_evaluation_waits_for_its_time(new_run: Callable[..., Any], tmp_path: Path) -> None:
    trainer, seen = new_run(tmp_path), []

    def evaluate(head: DraftHead, step: int) -> dict[str, float]:
        seen.append((head.config.block_size, step))
        return {}

    trainer.run(Horizon(steps=2), evaluate=evaluate, evaluate_seconds=60.0, report=_quiet)
    assert seen == []


def test_a_stopwatch_counts_from_its_start_and_not_while_paused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(stopwatch, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watch = Stopwatch(10.0)
    now[0] += 1
    assert watch.seconds == 10.0
    with watch.paused():
        now[0] += 1
    assert not watch.running
    watch.start()
    now[0] += 2
    watch.start()
    assert watch.seconds == 12.0
    with watch.paused():
        now[0] += 4
        assert watch.seconds == 12.0
    assert watch.running
    now[0] += 8
    assert watch.seconds == 20.0


@pytest.mark.slow
def test_a_signalled_command_is_resumed_bit_for_bit(
    tmp_path: Path, save_words: Callable[..., None]
) -> None:
    _target_and_data(tmp_path, save_words)
    options = ["--target", str(tmp_path / "target"), "--data", str(tmp_path / "data"),
               "--max-steps", "200", "--layers", "1", "--block-size", "4", "--path-rank", "4",
               "--rows", "4", "--width", "24", "--anchors", "3", "--chunks", "1"]  # fmt: skip
    straight = ["train", *options, "--out", str(tmp_path / "straight")]
    assert run_app(build(), straight, name="jetflow-train") == 0
    cut = ["train", *options, "--out", str(tmp_path / "cut")]
    with subprocess.Popen(
        [sys.executable, "-m", "jetflow_train", *cut], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step 25 "):
                process.send_signal(signal.SIGTERM)
                break
        said = process.stderr.read()
    assert process.returncode == INTERRUPTED == 75, said
    state = torch.load(tmp_path / "cut" / "state.pt", weights_only=True)
    assert 25 <= state["step"] < 200
    told = f"interrupted after step {state['step']}; --resume goes on from there"
    assert said.splitlines().count(told) == 1
    assert not (tmp_path / "cut" / "head").exists()
    assert run_app(build(), [*cut, "--resume"], name="jetflow-train") == 0
    heads = [load_head(tmp_path / name / "head").head for name in ("straight", "cut")]
    _same_bits(*heads)


def _target_and_data(folder: Path, save_words: Callable[..., None]) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=128,
        )
    ).save_pretrained(folder / "target")
    save_words(folder / "target", 64)
    rng = np.random.default_rng(0)
    corpus = Corpus.of(
        [rng.integers(0, 64, 2) for _ in range(7)],
        [rng.integers(0, 64, 7 + n) for n in range(7)],
        np.zeros(7, np.float32),
        np.zeros(7, np.bool_),
    )
    target = load_target(folder / "target", torch.device("cpu"), torch.float32)
    (folder / "data").mkdir()
    shards = [save_shard(folder / "data", 0, corpus, 64)]
    write_manifest(folder / "data", {"target": target.fingerprint, "shards": shards})


def _same_bits(one: DraftHead, other: DraftHead) -> None:
    for (name, mine), theirs in zip(one.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs), name


def _quiet(text: str) -> None:
    assert text
