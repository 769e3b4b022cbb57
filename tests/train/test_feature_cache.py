"""Hidden states that were kept teach what captured ones do, and belong to their own data alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.head.checkpoint import load_head
from jetflow_train import feature_cache, step
from jetflow_train.distributed import World
from jetflow_train.feature_cache import FeatureCache, open_cache
from jetflow_train.packing import build_batch, pack
from jetflow_train.run import run_train
from jetflow_train.settings import TrainSettings
from jetflow_train.shards import Corpus, DataMismatchError, load_corpus
from jetflow_train.step import batch_sight
from jetflow_train.target import FrozenTarget, load_target

TAPS, WIDTH = (0, 1), 24


@pytest.fixture(scope="module")
def target(study_home: Path) -> FrozenTarget:
    return load_target(study_home / "target", torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def corpus(study_home: Path, target: FrozenTarget) -> Corpus:
    return load_corpus([study_home / "words"], target.fingerprint)


def _quiet(text: str) -> None:
    assert text


def _settings(home: Path, out: Path, **changes: Any) -> TrainSettings:
    given: dict[str, Any] = {
        "data": (home / "words",), "out": out, "target": home / "target", "max_steps": 6,
        "layers": 1, "block_size": 4, "path_rank": 2, "rows": 2, "width": WIDTH, "anchors": 3,
        "chunks": 1, "taps": TAPS,
    }  # fmt: skip
    return TrainSettings(**{**given, **changes})


def test_kept_states_are_those_that_a_packed_row_has(
    target: FrozenTarget, corpus: Corpus, tmp_path: Path
) -> None:
    kept = open_cache(tmp_path / "a", target, corpus, TAPS, WIDTH, _quiet)
    again = open_cache(tmp_path / "a", target, corpus, TAPS, WIDTH, pytest.fail)
    assert torch.equal(kept.features, again.features) and torch.equal(kept.final, again.final)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]
    rows = pack(corpus, WIDTH, seed=7, epoch=3)
    batch = build_batch(corpus, rows, width=WIDTH, anchors=2, depth=3, key=(7, 0))
    real = torch.from_numpy(batch.places >= 0)
    assert torch.equal(real, torch.from_numpy(batch.documents >= 0))
    assert np.array_equal(corpus.tokens[batch.places[real.numpy()]], batch.tokens[real.numpy()])
    fresh = target.capture(
        torch.from_numpy(batch.tokens),
        torch.from_numpy(batch.positions),
        batch_sight(target, batch.documents),
        TAPS,
    )
    for one, other in zip(kept.rows(batch.places, target.device), fresh, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one[real], other[real], rtol=0, atol=1e-5)


def test_a_run_with_a_cache_learns_the_same_without_the_target_s_layers(
    study_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_train(_settings(study_home, tmp_path / "fresh"), report=_quiet)
    cache, said = tmp_path / "cache", []
    run_train(_settings(study_home, tmp_path / "kept", cache=cache), report=said.append)
    assert any("hidden states of" in line and "are captured" in line for line in said)
    one, other = (load_head(tmp_path / run / "head").head for run in ("fresh", "kept"))
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)

    def never(*_: Any) -> None:
        raise AssertionError("the target ran")

    # What a step captures with; a fresh head's layers still begin with a look at the target.
    monkeypatch.setattr(step, "batch_sight", never)
    run_train(_settings(study_home, tmp_path / "again", cache=cache), report=_quiet)
    third = load_head(tmp_path / "again" / "head").head
    for mine, theirs in zip(other.parameters(), third.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_run_resumes_with_its_cache_and_not_without(study_home: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    looks = iter([False] * 3)
    run_train(_settings(study_home, tmp_path / "whole", cache=cache), report=_quiet)
    settings = _settings(study_home, tmp_path / "cut", cache=cache)
    assert run_train(settings, stop_asked=lambda: next(looks, True), report=_quiet) is None
    shutil.copytree(tmp_path / "cut", tmp_path / "other")
    run_train(_settings(study_home, tmp_path / "cut", cache=cache, resume=True), report=_quiet)
    heads = [load_head(tmp_path / run / "head").head for run in ("whole", "cut")]
    for mine, theirs in zip(*(head.parameters() for head in heads), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(DataMismatchError, match="cache"):
        run_train(_settings(study_home, tmp_path / "other", resume=True), report=_quiet)


def test_states_of_something_else_are_refused_by_name(
    target: FrozenTarget, corpus: Corpus, study_home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "a"
    open_cache(file, target, corpus, TAPS, WIDTH, _quiet)
    other = load_corpus([study_home / "corpus"], target.fingerprint)
    for texts, taps, width, name in (
        (other, TAPS, WIDTH, "data"), (corpus, (1,), WIDTH, "taps"), (corpus, TAPS, 12, "width"),
    ):  # fmt: skip
        with pytest.raises(DataMismatchError, match=f"hidden states of another {name}: "):
            open_cache(file, target, texts, taps, width, pytest.fail)
    for damage in (b"", b"not states", file.read_bytes()[:200]):
        file.write_bytes(damage)
        with pytest.raises(DataMismatchError, match="holds no hidden states"):
            open_cache(file, target, corpus, TAPS, WIDTH, pytest.fail)


def test_without_room_nothing_is_begun(
    target: FrozenTarget, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"--cache needs .* has 1000 B left"):
        open_cache(tmp_path / "a", target, corpus, TAPS, WIDTH, pytest.fail)
    assert not list(tmp_path.iterdir())


def test_padding_reads_something_and_nothing_fails() -> None:
    kept = FeatureCache(torch.arange(6.0)[:, None], torch.arange(6.0)[:, None])
    features, final = kept.rows(np.asarray([[5, -1]]), torch.device("cpu"))
    assert features[0, 0, 0] == final[0, 0, 0] == 5 and features.shape == (1, 2, 1)


def test_several_processes_are_refused(study_home: Path, tmp_path: Path) -> None:
    settings = _settings(study_home, tmp_path / "out", cache=tmp_path / "cache")
    with pytest.raises(ValueError, match="--cache is for one process, and 2 share this run"):
        run_train(settings, world=World(rank=0, size=2), report=_quiet)
    assert not list(tmp_path.iterdir())
