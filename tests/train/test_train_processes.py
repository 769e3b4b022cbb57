"""Two processes take the steps of one, and end together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jetflow_train.distributed import joined
from jetflow_train.initialise import head_config, new_head
from jetflow_train.schedule import Horizon
from jetflow_train.shards import Corpus
from jetflow_train.target import from_model
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
torch.manual_seed(0)
shape = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
             num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)
model = LlamaForCausalLM(LlamaConfig(**shape)).double().eval()
target = from_model(model, torch.device("cpu"))
config = head_config(target.shape, num_layers=1, block_size=4, path_rank=4, taps=(0, 1))
rng = np.random.default_rng(0)
texts = [rng.integers(0, 64, 3 + 2 * n) for n in range(7)]
corpus = Corpus.of([t[:2] for t in texts], [rng.integers(0, 64, 9) for _ in texts],
                   np.zeros(7, np.float32), np.zeros(7, np.bool_))
with joined() as world:
    head = new_head(target, config, torch.arange(32).view(1, 32), 0).double()
    horizon = Horizon(minutes=float(sys.argv[3])) if sys.argv[2] == "time" else Horizon(steps=4)
    trainer = Trainer(target, head, corpus,
                      TrainConfig(rows=2, width=32, anchors=3, chunks=1, pieces=int(sys.argv[4])),
                      Path(sys.argv[1]), compiled=False, world=world)
    trainer.run(horizon, log_every=1, report=lambda text: None)
    print(world.rank, trainer.progress.step, flush=True)
"""


def _run(out: Path, processes: int, *arguments: str, pieces: int = 1) -> list[list[str]]:
    script = out.with_suffix(".py")
    script.write_text(SCRIPT)
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone",
             f"--nproc-per-node={processes}"] if processes > 1 else [sys.executable]  # fmt: skip
    command = [*start, str(script), str(out), *arguments, str(pieces)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(line.split() for line in done.stdout.splitlines())


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(tmp_path: Path) -> None:
    assert _run(tmp_path / "one", 1, "steps", "0", pieces=2) == [["0", "4"]]
    assert _run(tmp_path / "two", 2, "steps", "0") == [["0", "4"], ["1", "4"]]
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert len(one) == len(two) == 4
    for mine, other in zip(one, two, strict=True):
        for key in ("base_loss", "path_loss", "grad_norm"):
            assert mine[key] == pytest.approx(other[key], rel=1e-6), key
    states = [
        torch.load(tmp_path / name / "state.pt", weights_only=True) for name in ("one", "two")
    ]
    for name, weight in states[0]["head"].items():
        assert torch.allclose(weight, states[1]["head"][name], atol=1e-6), name


@pytest.mark.slow
def test_a_time_horizon_ends_at_the_same_step_everywhere(tmp_path: Path) -> None:
    (_, first), (_, second) = _run(tmp_path / "run", 2, "time", "0.02")
    assert first == second
    assert int(first) >= 1
