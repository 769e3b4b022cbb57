"""A run is given by options or a file, stored, and given again; it begins fresh or from a head."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.cli import run
from jetflow_core.commands.registry import build_app
from jetflow_core.head.checkpoint import load_head
from jetflow_core.head.model import DraftHead
from jetflow_train.files import sha256_file
from jetflow_train.heads import HeadChoice, start_head
from jetflow_train.run import OutOfMemory, run_train
from jetflow_train.settings import HEAD_FIELDS, TrainSettings
from jetflow_train.shards import Corpus, DataMismatchError, save_shard, write_manifest
from jetflow_train.sinks.jsonl import read_lines
from jetflow_train.target import load_target
from jetflow_train.train_config import TrainConfig
from jetflow_train.trainer import Trainer

TINY = {"rows": 4, "width": 24, "anchors": 3, "chunks": 1, "max_steps": 3}
HEAD = {"layers": 1, "block_size": 4, "path_rank": 4, "candidate_pool": 20, "taps": (0, 3)}


@pytest.fixture(scope="module")
def home(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: Callable[..., Any],
    save_words: Callable[..., None],
) -> Path:
    """A folder with a target, data that it wrote, and a head that learnt from them."""
    folder = tmp_path_factory.mktemp("home")
    tiny_model("llama", dtype=torch.float32).save_pretrained(folder / "target")
    save_words(folder / "target", 128)
    rng = np.random.default_rng(0)
    corpus = Corpus.of(
        [rng.integers(0, 128, 3) for _ in range(12)],
        [rng.integers(0, 128, 7 + n) for n in range(12)],
        np.zeros(12, np.float32),
        np.zeros(12, np.bool_),
    )
    target = load_target(folder / "target", torch.device("cpu"), torch.float32)
    (folder / "data").mkdir()
    shards = [save_shard(folder / "data", 0, corpus, 128)]
    write_manifest(folder / "data", {"target": target.fingerprint, "shards": shards})
    run_train(settings_in(folder, "first"), report=_quiet)
    return folder


def settings_in(home: Path, out: str, **options: Any) -> TrainSettings:
    return TrainSettings(
        **{
            "data": (home / "data",),
            "target": home / "target",
            "out": home / out,
            **TINY,
            **HEAD,
            **options,
        }
    )


def parsed(*words: str) -> TrainSettings:
    """What the command line makes of the options of `jetflow train`."""
    _, bound, _ = build_app().parse_args(["train", *words], print_error=False, exit_on_error=False)
    found = bound.arguments["settings"]
    assert isinstance(found, TrainSettings)
    return found


def test_every_setting_of_a_run_is_an_option() -> None:
    options = {each.name: each.default for each in dataclasses.fields(TrainSettings)}
    # Left out, it follows what the processes hold of the head.
    assert options.pop("optimizer") is None
    for each in dataclasses.fields(TrainConfig):
        assert options.get(each.name, "muon") == each.default, each.name
    settings = TrainSettings(data=(), out=Path("o"), max_steps=1)
    assert settings.train_config() == TrainConfig()
    assert settings.head_choice() == HeadChoice()


def test_a_run_given_again_is_the_same_run(home: Path) -> None:
    stored = home / "first" / "run.toml"
    again = parsed("--config", str(stored), "--out", str(home / "again"))
    first = settings_in(home, "first").resolved(load_head(home / "first" / "head").config)
    assert parsed("--config", str(stored)) == first
    assert again == dataclasses.replace(first, out=home / "again")
    assert (again.path_context, again.causal, again.init) == (True, True, None)
    run_train(again, report=_quiet)
    _same_weights(home / "first" / "head", home / "again" / "head")


def test_the_record_of_a_run(home: Path) -> None:
    start = json.loads((home / "first" / "start.json").read_text())
    result = json.loads((home / "first" / "result.json").read_text())
    provenance = load_head(home / "first" / "head").info.provenance
    assert provenance == result
    assert result["data"] == {"data": sha256_file(home / "data" / "manifest.json")}
    assert re.fullmatch("[0-9a-f]{40}", result["git"]["revision"])
    assert {"torch", "jetflow-train"} <= result["packages"].keys()
    assert result["arguments"] and result["start_head"] is None
    assert result["steps"] == 3 and result["train"]["rows"] == 4
    assert result["memory"] == {"estimate": start["estimate"]["peak"], "measured": None}
    weights = sum(w.numel() for w in load_head(home / "first" / "head").head.parameters())
    assert start["estimate"]["parameters"] == weights
    assert str(home) not in json.dumps([start, result])


def test_the_estimate_is_told_before_training(home: Path) -> None:
    said: list[str] = []
    run_train(settings_in(home, "told", max_steps=20), report=said.append)
    first = next(i for i, line in enumerate(said) if line.startswith("step "))
    assert [i for i, line in enumerate(said) if line.startswith(("head:", "a step, est"))] == [1, 2]
    assert first > 3
    assert said[first].startswith("step 20 ") and said[first].endswith(", 0:00:00 left")


def test_a_dry_run_stores_a_head_that_loads_and_nothing_is_learnt(home: Path) -> None:
    said: list[str] = []
    folder = run_train(settings_in(home, "dry", dry_run=True), report=said.append)
    assert folder == home / "dry" / "head"
    assert any("in all at most about" in line for line in said)
    loaded = load_head(folder)
    assert loaded.info.provenance["steps"] == 0
    assert sorted(file.name for file in (home / "dry").iterdir()) == [
        "head", "run.toml", "start.json",
    ]  # fmt: skip
    # The real run takes its place, and the file does not ask for a dry run again.
    run_train(parsed("--config", str(home / "dry" / "run.toml")), report=_quiet)
    _same_weights(home / "first" / "head", home / "dry" / "head")


def test_a_run_begins_with_a_stored_head(home: Path) -> None:
    none = dict.fromkeys(HEAD)
    start = home / "first" / "head"
    settings = settings_in(home, "second", start_head=start, loss="reverse_kl", **none)
    # With rates of nearly zero, what comes out is what went in.
    still = dataclasses.replace(settings, learning_rate=1e-30, path_learning_rate=1e-30)
    run_train(still, report=_quiet)
    _same_weights(start, home / "second" / "head")
    result = json.loads((home / "second" / "result.json").read_text())
    digest = sha256_file(start / "model.safetensors")
    assert result["start_head"] == {"name": "head", "sha256": {"model.safetensors": digest}}
    stored = tomllib.loads((home / "second" / "run.toml").read_text())
    assert (stored["layers"], stored["taps"], "init" in stored) == (1, [0, 3], False)
    assert parsed("--config", str(home / "second" / "run.toml")).start_head == start
    resumed = dataclasses.replace(still, resume=True, start_head=None, max_steps=5, **HEAD)
    with pytest.raises(DataMismatchError, match=r"began with the head head \(.*--config"):
        run_train(resumed, report=_quiet)
    run_train(dataclasses.replace(resumed, start_head=start), report=_quiet)
    assert json.loads((home / "second" / "result.json").read_text())["steps"] == 5


CONFLICTS = {
    "layers": (2, "--layers 2 does not fit the head at .*, which has 1"),
    "block_size": (5, "--block-size 5 does not fit"),
    "path_rank": (0, "--path-rank 0 does not fit .*, which has 4"),
    "input_bridge": (False, "--input-bridge false does not fit .* which has true"),
    "path_context": (False, "--path-context false does not fit .* which has true"),
    "candidate_pool": (40, "--candidate-pool 40 does not fit"),
    "causal": (False, "--causal false does not fit"),
    "taps": ((0, 1), "--taps 0 1 does not fit the head at .*, which has 0 3"),
    "init": ("random", "--init random goes with a fresh head"),
}


@pytest.mark.parametrize("name", CONFLICTS)
def test_options_that_a_stored_head_fixes_are_refused_by_name(name: str, home: Path) -> None:
    assert CONFLICTS.keys() == {*HEAD_FIELDS, "init"}
    value, message = CONFLICTS[name]
    start = home / "first" / "head"
    settings = settings_in(home, "bad", start_head=start, **{**dict.fromkeys(HEAD), name: value})
    with pytest.raises(ValueError, match=message):
        run_train(settings, report=_quiet)
    assert not (home / "bad").exists()


def test_a_head_of_another_target_is_refused(
    home: Path, tiny_model: Callable[..., Any], tmp_path: Path
) -> None:
    for file in (home / "target").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tiny_model("llama", dtype=torch.float32, num_hidden_layers=5).save_pretrained(tmp_path)
    target = load_target(tmp_path, torch.device("cpu"), torch.float32)
    shards = json.loads((home / "data" / "manifest.json").read_text())["shards"]
    (tmp_path / "data").mkdir()
    for shard in shards:
        (tmp_path / "data" / shard["name"]).write_bytes(
            (home / "data" / shard["name"]).read_bytes()
        )
    write_manifest(tmp_path / "data", {"target": target.fingerprint, "shards": shards})
    settings = settings_in(home, "bad", target=tmp_path, data=(tmp_path / "data",))
    settings = dataclasses.replace(settings, start_head=home / "first" / "head")
    with pytest.raises(ValueError, match="made for a target whose number of layers is 4"):
        run_train(settings, report=_quiet)


def test_a_run_with_filled_prefixes_says_so_in_its_head(home: Path) -> None:
    run_train(settings_in(home, "filled", prefix_fill=0.5), report=_quiet)
    made = load_head(home / "filled" / "head").config
    assert made.prefix_filled
    first = load_head(home / "first" / "head").config
    assert made == dataclasses.replace(first, prefix_filled=True)
    again = parsed("--config", str(home / "filled" / "run.toml"), "--out", str(home / "filled-2"))
    assert again.prefix_fill == 0.5
    # Learnt later, and kept by a head that learns without it.
    free: dict[str, Any] = dict.fromkeys(HEAD)
    for name, start, share in (("later", "first", 0.5), ("kept", "filled", 0.0)):
        start_head = home / start / "head"
        settings = settings_in(home, name, start_head=start_head, prefix_fill=share, **free)
        run_train(settings, report=_quiet)
        assert load_head(home / name / "head").config.prefix_filled, name
    both = settings_in(home, "both", causal=False, dry_run=True)
    run_train(both, report=_quiet)
    start_head = home / "both" / "head"
    settings = settings_in(home, "bad", start_head=start_head, prefix_fill=0.5, **free)
    with pytest.raises(ValueError, match=r"--prefix-fill 0.5 does not fit the head at .*causal"):
        run_train(settings, report=_quiet)
    assert not (home / "bad").exists()


@pytest.mark.parametrize("loss", ["reverse_kl", "total_variation"])
def test_losses_that_a_fresh_head_cannot_learn_from(loss: str, home: Path) -> None:
    with pytest.raises(ValueError, match=rf"--loss {loss} .* a trained head with --start-head"):
        run_train(settings_in(home, "bad", loss=loss), report=_quiet)
    assert not (home / "bad").exists()


def test_taps_and_noise_reach_the_head(home: Path) -> None:
    settings = settings_in(home, "noise", init="random", taps=(2, 0), layers=6, dry_run=True)
    run_train(settings, report=_quiet)
    head = load_head(home / "noise" / "head").head
    assert head.config.target_layer_ids == (2, 0)
    target = load_target(home / "target", torch.device("cpu"), torch.float32)
    assert torch.equal(head.norm.weight, target.final_norm)
    for layer in target.layers:
        assert not torch.equal(head.layers[5].mlp.down_proj.weight, layer.down)
    stored = parsed("--config", str(home / "noise" / "run.toml"))
    assert (stored.init, stored.taps) == ("random", (2, 0))
    with pytest.raises(ValueError, match=r"num_layers 6 exceeds .* --init random"):
        run_train(settings_in(home, "bad", layers=6), report=_quiet)
    corpus = Corpus.of(
        [np.arange(4)] * 40, [np.arange(4)] * 40, np.zeros(40), np.zeros(40, np.bool_)
    )
    one, other = (
        start_head(target, corpus, HeadChoice(num_layers=1, init="random"), seed) for seed in (0, 1)
    )
    assert not torch.equal(one.fc.weight, other.fc.weight)


def test_figures_go_where_they_are_tracked(home: Path) -> None:
    run_train(settings_in(home, "tracked", track=("tensorboard",)), report=_quiet)
    assert list((home / "tracked" / "tensorboard").glob("events.out.tfevents.*"))
    assert [entry["step"] for entry in read_lines(home / "tracked" / "metrics.jsonl")] == [3]


def test_no_memory_is_one_line_with_the_estimate(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Trainer, "run", full)
    with pytest.raises(OutOfMemory, match=r"about .* were estimated.*--pieces than 1") as caught:
        run_train(settings_in(home, "bad"), report=_quiet)
    assert "\n" not in str(caught.value)


BAD = {
    "--eval-seconds -1": "eval-seconds -1.0 is out of range",
    "--eval-seconds nan": "eval-seconds nan is out of range",
    "--dry-run --resume": "--dry-run starts nothing",
    "--prefix-fill 1": "prefix-fill 1.0 is out of range: 0 or above, and below 1",
    "--prefix-fill -0.5": "prefix-fill -0.5 is out of range",
    "--prefix-fill 0.5 --causal=false": "--prefix-fill 0.5 needs a causal head",
    "--prefix-fill 0.5 --block-size 2": "needs a block-size of at least 3, got 2",
    "--shard all --eval-prompts x.jsonl": "--shard all leaves no process",
    "--shard head": "shares weights out over processes",
    "--track wandb": "wandb",
    "--taps 1.5": "taps '1.5' is no whole number",
    "--taps 0 9": "target_layer_ids: each must be a whole number 0..3, got 9",
    "--init zeros": "zeros",
    "--start-head nowhere": "no head at nowhere",
    "--loss reverse_kl": "start from a trained head with --start-head",
    "--warmup 1": "warmup must be in",
}


@pytest.mark.parametrize("words", BAD)
def test_one_line_and_exit_code_2(
    words: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "o"
    given = ["--data", home / "data", "--target", home / "target", "--out", out, "--max-steps", 1]
    code = run(["train", *map(str, given), *words.split()])
    err = capsys.readouterr().err.splitlines()
    assert (code, out.exists()) == (2, False), err
    assert BAD[words] in err[-1]
    assert len(err) == 1 or err[0].startswith("12 sequences")


def _same_weights(one: Path, other: Path) -> None:
    heads: list[DraftHead] = [load_head(folder).head for folder in (one, other)]
    for (name, mine), theirs in zip(
        heads[0].named_parameters(), heads[1].parameters(), strict=True
    ):
        assert torch.equal(mine, theirs), name


def _quiet(text: str) -> None:
    assert text


# What is refused leaves the folder as it was


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.1}, "made differently"),
        ({"max_steps": 2}, r"--max-steps 2 is out of range: .* taken 3 steps already"),
    ],
)
def test_a_refused_resume_changes_nothing(
    home: Path, options: dict[str, Any], message: str
) -> None:
    before = _contents(home / "first")
    with pytest.raises(ValueError, match=message):
        run_train(settings_in(home, "first", resume=True, **options), report=_quiet)
    assert _contents(home / "first") == before


def test_a_torn_state_is_named(home: Path) -> None:
    shutil.copytree(home / "first", home / "torn")
    state = home / "torn" / "state.pt"
    state.write_bytes(state.read_bytes()[:-100])
    before = _contents(home / "torn")
    with pytest.raises(DataMismatchError, match=r"state\.pt is no readable state of a run"):
        run_train(settings_in(home, "torn", resume=True, max_steps=5), report=_quiet)
    assert _contents(home / "torn") == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 1}, "the data fills 0 rows of 1 tokens"),
        ({"rows": 4000}, r"a step needs 4000: more data, .* fewer rows \(4000\)"),
        ({"rows": 4000, "dry_run": True}, "a step needs 4000"),
    ],
)
def test_data_that_fill_no_step_are_refused_before_anything_is_written(
    home: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run_train(settings_in(home, "refused", **options), report=_quiet)
    assert not (home / "refused").exists()


def test_held_out_prompts_without_room_for_answers_are_refused_first(home: Path) -> None:
    prompts = home / "long.jsonl"
    prompts.write_text(json.dumps({"prompt": "w1 " * 130}))
    with pytest.raises(ValueError, match=r"no prompt of at most 128 tokens in .*long\.jsonl"):
        run_train(settings_in(home, "refused", eval_prompts=(prompts,)), report=_quiet)
    assert not (home / "refused").exists()


def test_a_fresh_run_forgets_figures_of_one_that_was_killed(home: Path) -> None:
    (home / "fresh").mkdir()
    (home / "fresh" / "metrics.jsonl").write_text('{"step": 900}\n')
    run_train(settings_in(home, "fresh"), report=_quiet)
    text = (home / "fresh" / "metrics.jsonl").read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == [3]


def test_a_failed_evaluation_costs_no_head(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("jetflow_train.run.evaluate_sets", fail)
    (home / "p.jsonl").write_text('{"prompt": "w1 w2"}\n')
    asked = settings_in(home, "unlucky", eval_prompts=(home / "p.jsonl",), eval_seconds=0.0)
    with pytest.raises(RuntimeError, match="out of luck"):
        run_train(asked, report=_quiet)
    assert load_head(home / "unlucky" / "head").info.provenance["steps"] == TINY["max_steps"]
