"""Sharded weights take the steps of whole ones; states go from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_train.distributed import World
from jetflow_train.schedule import Horizon
from jetflow_train.sharding import ShardedTarget, check_shard
from jetflow_train.shards import DataMismatchError
from torch import distributed as dist
from torch.distributed.tensor import DTensor


@pytest.fixture(scope="module")
def alone() -> Iterator[World]:
    """A process group of this process only."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield World(0, 1, dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("shard", ["head", "all"])
def test_a_sharded_run_equals_a_whole_one(
    new_run: Callable[..., Any], alone: World, tmp_path: Path, shard: str
) -> None:
    whole, sharded = new_run(tmp_path / "a"), new_run(tmp_path / "b", alone, shard=shard, pieces=2)
    assert all(isinstance(weight, DTensor) for weight in sharded.head.parameters())
    assert isinstance(sharded.target, ShardedTarget) == (shard == "all")
    for trainer in (whole, sharded):
        trainer.run(Horizon(steps=3), log_every=1, report=_quiet)
    for mine, other in zip(whole.progress.history, sharded.progress.history, strict=True):
        for key in ("base_loss", "path_loss", "grad_norm"):
            assert mine[key] == pytest.approx(other[key], rel=1e-5), key
    _same(whole, sharded, 1e-6)


def test_a_state_goes_from_sharded_to_whole_and_back(
    new_run: Callable[..., Any], alone: World, tmp_path: Path
) -> None:
    straight = new_run(tmp_path / "straight")
    straight.run(Horizon(steps=4), report=_quiet)
    for stop_after, shard in ((1, "head"), (2, "none"), (3, "all"), (4, "none")):
        part = new_run(tmp_path / "parts", alone, shard=shard)
        assert part.progress.step == stop_after - 1
        part.run(Horizon(steps=4), stop_after=stop_after, report=_quiet)
    _same(straight, part, 1e-6)
    # The optimizer went along: with moments that begin anew, the weights differ by the rate.
    moments = torch.load(tmp_path / "parts" / "state.pt", weights_only=True)["optimizer"]["state"]
    assert {int(moment["step"]) for moment in moments.values()} == {4}


def test_a_broken_step_of_a_sharded_head_changes_nothing(
    new_run: Callable[..., Any], alone: World, tmp_path: Path
) -> None:
    trainer, told = new_run(tmp_path, alone, shard="head"), []
    trainer.run(Horizon(steps=1), report=_quiet)
    before = trainer.whole_head()
    kept = trainer.embedding.clone()
    trainer.embedding.fill_(float("nan"))
    trainer.run(Horizon(steps=2), log_every=1, report=told.append)
    trainer.embedding.copy_(kept)
    after = trainer.whole_head()
    for (name, one), other in zip(before.named_parameters(), after.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert any(line.startswith("step 1 skipped, its gradient is not finite") for line in told)
    trainer.run(Horizon(steps=3), report=_quiet)
    assert not torch.equal(trainer.whole_head().fc.weight, after.fc.weight)


def test_a_whole_copy_shares_nothing_with_the_head(
    new_run: Callable[..., Any], tmp_path: Path
) -> None:
    trainer = new_run(tmp_path)
    copy = trainer.whole_head()
    with torch.no_grad():
        copy.fc.weight.fill_(0.0)
    assert trainer.head.fc.weight.any()
    assert [name for name, _ in copy.named_parameters()] == [
        name for name, _ in trainer.head.named_parameters()
    ]


def test_sharding_needs_processes_and_a_known_name() -> None:
    with pytest.raises(ValueError, match="start them with torchrun"):
        check_shard("head", World())
    with pytest.raises(ValueError, match="'target' is unknown: one of none, head, all"):
        check_shard("target", World())


def test_a_state_of_another_format_is_refused(new_run: Callable[..., Any], tmp_path: Path) -> None:
    torch.save({"head": {}, "step": 1}, tmp_path / "state.pt")
    with pytest.raises(DataMismatchError, match=r"format: stored None, wanted 'jetflow-state/2'"):
        new_run(tmp_path)


def _same(one: Any, other: Any, tolerance: float) -> None:
    weights = other.whole_head()
    for (name, mine), theirs in zip(one.head.named_parameters(), weights.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=tolerance), name


def _quiet(text: str) -> None:
    assert text
