"""Fitting how sharply scores are read: the best is chosen, stored, and nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.head.checkpoint import HeadInfo, load_head, read_config, save_head
from jetflow_core.head.model import DraftHead
from jetflow_train.evaluation.calibration import (
    FEWEST_TEXTS,
    TRIED,
    CalibrationSettings,
    calibrate,
    fit,
    stored_answers,
)
from jetflow_train.evaluation.drafts import draft_texts
from jetflow_train.evaluation.offline import evaluate
from jetflow_train.evaluation.policies import OWN, exact_policies
from jetflow_train.evaluation.walk import StoredText
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.heads import stored_head
from jetflow_train.initialise import head_config
from jetflow_train.shards import Corpus, save_shard, write_manifest
from jetflow_train.target import FrozenTarget, from_model

SETTINGS = CalibrationSettings(texts=20, budget=6, max_new_tokens=9)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[..., Any]) -> Path:
    """A target's folder."""
    folder = tmp_path_factory.mktemp("calibrate")
    tiny_model("llama", dtype=torch.float32, eos_token_id=0).save_pretrained(folder / "target")
    return folder


@pytest.fixture(scope="module")
def target(folder: Path, tiny_model: Callable[..., Any]) -> FrozenTarget:
    return from_model(tiny_model("llama", dtype=torch.float32, eos_token_id=0), torch.device("cpu"))


@pytest.fixture(scope="module")
def head(target: FrozenTarget) -> DraftHead:
    torch.manual_seed(3)
    config = head_config(target.shape, num_layers=1, block_size=5, path_rank=8, taps=(0, 3))
    head = DraftHead(replace(config, candidates=24))
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(0.4 * torch.randn_like(parameter))
    return head.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def corpus(target: FrozenTarget, head: DraftHead) -> Corpus:
    """Texts that the head foresees now and then: each token is one of its own best few."""
    rng = np.random.default_rng(1)
    texts = [rng.integers(1, 128, size=5) for _ in range(55)]
    for _ in range(11):
        stored = [StoredText(tokens=text, prompt_len=len(text) - 1, limit=2) for text in texts]
        drafted = [each[OWN] for each in draft_texts(target, head, stored, [OWN], 0.0)]
        next_tokens = [int(each.tokens[0, 0, rng.integers(0, 4)]) for each in drafted]
        texts = [np.append(text, token) for text, token in zip(texts, next_tokens, strict=True)]
    temperatures = np.repeat(np.array([0.0, 0.7, 0.9], np.float32), (20, 20, FEWEST_TEXTS - 1))
    return Corpus.of(
        [text[:4] for text in texts],
        [text[4:] for text in texts],
        temperatures,
        np.zeros(55, np.bool_),
    )


@pytest.mark.slow
def test_the_best_sharpness_of_each_temperature_is_chosen(
    target: FrozenTarget, head: DraftHead, corpus: Corpus
) -> None:
    told: list[str] = []
    pairs = fit(target, head, corpus, SETTINGS, Walkers(), told.append)
    assert [asked for asked, _ in pairs] == [0.0, 0.7]
    assert "temperature 0.9: 15 answers are too few" in told
    for asked, fitted in pairs:
        answers = stored_answers(corpus, asked, SETTINGS)
        assert len(answers.texts) == 20
        assert all(len(text.answer) == 9 for text in answers.texts)
        taus = {}
        for tried in TRIED:
            # As the command does it: by way of what a head says of itself.
            config = replace(head.config, score_temperatures=((asked, tried),))
            read = DraftHead(config)
            read.load_state_dict(head.state_dict())
            trees = {OWN: exact_policies([SETTINGS.budget], config.max_depth)[1:]}
            taus[tried] = evaluate(target, read, answers, trees).walked[0].tau
        assert taus[fitted] == max(taus.values())
        assert len(set(taus.values())) > 1


@pytest.fixture
def data(tmp_path: Path, target: FrozenTarget, corpus: Corpus) -> Path:
    entry = save_shard(tmp_path / "data", 0, corpus, target.shape.vocab_size)
    write_manifest(
        tmp_path / "data",
        {"target": target.fingerprint, "shards": [entry], "complete": True, "jobs": {}},
    )
    return tmp_path / "data"


def test_it_is_stored_with_the_head_and_nothing_else_changes(
    folder: Path, tmp_path: Path, data: Path, head: DraftHead
) -> None:
    place = save_head(tmp_path / "head", head, HeadInfo(target="tiny", provenance={"steps": 7}))
    before = json.loads((place / "config.json").read_text())
    weights = (place / "model.safetensors").read_bytes()
    found = calibrate(folder / "target", [place], [data], SETTINGS, lambda _: None)
    assert list(found) == [place]
    pairs = found[place]
    assert [asked for asked, _ in pairs] == [0.0, 0.7]
    after = json.loads((place / "config.json").read_text())
    assert after["jetflow"].pop("score_temperatures") == [list(pair) for pair in pairs]
    assert before["jetflow"].pop("score_temperatures") == []
    assert after == before
    assert (place / "model.safetensors").read_bytes() == weights
    config, info = read_config(place)
    assert config.score_temperatures == pairs
    assert info.provenance == {"steps": 7}
    assert load_head(place).config == config
    # Fitted again it is the same: what is stored is not read on top.
    assert calibrate(folder / "target", [place], [data], SETTINGS, lambda _: None) == found


def test_text_of_somebody_else_is_left_out_and_close_temperatures_stay_apart(
    target: FrozenTarget, head: DraftHead, corpus: Corpus
) -> None:
    # As they come back from a data folder.
    asked = np.array([0.7, np.nan, 0.3003, 0.3], np.float16).astype(np.float32)
    mixed = replace(corpus, temperature=asked[np.arange(55) % 4])
    # Of one corpus each temperature has too few.
    double = Corpus.joined([mixed, mixed])
    told: list[str] = []
    short = replace(SETTINGS, texts=FEWEST_TEXTS, budget=4, max_new_tokens=3)
    pairs = fit(target, head, double, short, Walkers(), told.append)
    assert [temperature for temperature, _ in pairs] == [0.3, 0.3003, 0.7]
    assert replace(head.config, score_temperatures=pairs).score_temperatures == pairs
    assert len(told) == 3


def test_a_head_that_is_trained_further_begins_without(
    tmp_path: Path, target: FrozenTarget, head: DraftHead
) -> None:
    # Else it would hold for other weights, and a run whose start head was fitted meanwhile could
    # not be resumed.
    fitted = DraftHead(replace(head.config, score_temperatures=((0.0, 0.5),)))
    fitted.load_state_dict(head.state_dict())
    place = save_head(tmp_path / "head", fitted, HeadInfo())
    assert load_head(place).config == fitted.config
    assert stored_head(place, target).config == head.config


def _refused(*_: Any, **__: Any) -> None:
    raise PermissionError(13, "Permission denied")


def test_what_cannot_be_fitted_is_refused_and_nothing_written(
    folder: Path,
    tmp_path: Path,
    data: Path,
    target: FrozenTarget,
    head: DraftHead,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = save_head(tmp_path / "head", head, HeadInfo())
    before = (place / "config.json").read_bytes()
    with pytest.raises(ValueError, match=f"texts 15 is out of range: at least {FEWEST_TEXTS}"):
        replace(SETTINGS, texts=FEWEST_TEXTS - 1)
    few = replace(corpus, temperature=np.arange(55, dtype=np.float32))
    with pytest.raises(ValueError, match=f"no temperature of the data has {FEWEST_TEXTS} answers"):
        fit(target, head, few, SETTINGS, Walkers(), lambda _: None)
    # Before minutes of walking, not after them.
    monkeypatch.setattr(Path, "touch", _refused)
    with pytest.raises(ValueError, match="Permission denied"):
        calibrate(folder / "target", [place], [data], SETTINGS, pytest.fail)
    monkeypatch.undo()
    assert (place / "config.json").read_bytes() == before
    config = json.loads(before)
    del config["jetflow"]
    config["dflash_config"]["mask_token_id"] = 1
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="foreign has no jetflow section"):
        calibrate(folder / "target", [foreign], [data], SETTINGS, lambda _: None)
