"""Which parameters each optimizer has, and that a skipped step leaves everything as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_train.distributed import World
from jetflow_train.optimizer import HeadOptimizer, muon_parameters
from jetflow_train.sharding import check_optimizer
from jetflow_train.train_config import TrainConfig


@pytest.fixture
def trainer(new_run: Callable[..., Any], tmp_path: Path) -> Any:
    return new_run(tmp_path, World(), optimizer="muon")


def test_every_parameter_has_one_optimizer_and_its_rate(trainer: Any) -> None:
    optimizer, head = trainer.optimizer, trainer.head
    held = [id(each) for group in optimizer.param_groups for each in group["params"]]
    assert sorted(held) == sorted(id(each) for each in head.parameters())
    turned = {id(each) for each in optimizer.muon.param_groups[0]["params"]}
    names = {name for name, each in head.named_parameters() if id(each) in turned}
    assert {name.split(".")[0] for name in names} == {"fc", "layers"}
    assert len(names) == 1 + 7 * head.config.num_layers == len(muon_parameters(head))
    path = {id(each) for each in head.path.parameters()}
    peaks = {
        id(each): group["peak"] for group in optimizer.param_groups for each in group["params"]
    }
    assert {peaks[each] for each in path} == {TrainConfig().path_learning_rate}
    assert {peaks[each] for each in turned} == {TrainConfig().learning_rate}
    whole = HeadOptimizer(head, TrainConfig(optimizer="adamw"))
    assert whole.muon is None
    assert len(whole.param_groups) == 2


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_broken_step_changes_nothing(trainer: Any, steps_before: int) -> None:
    optimizer, head = trainer.optimizer, trainer.head

    def step(value: float) -> None:
        for parameter in head.parameters():
            parameter.grad = torch.full_like(parameter, value)
        norm = torch.tensor(value)
        optimizer.arm(~torch.isfinite(norm))
        optimizer.step()

    def everything() -> list[torch.Tensor]:
        moments = [
            value for each in head.parameters() for value in optimizer.state.get(each, {}).values()
        ]
        return [each.detach().clone() for each in (*head.parameters(), *moments)]

    for _ in range(steps_before):
        step(0.5)
    before, weights = everything(), len(list(head.parameters()))
    step(float("nan"))
    after = everything()
    # Moments that the broken step began are zero; the others, as all weights, are what they were.
    known = len(before)
    assert all(torch.equal(a, b) for a, b in zip(after[:weights], before[:weights], strict=True))
    if steps_before:
        assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    else:
        assert known == weights
        assert not any(each.any() for each in after[weights:])
    step(0.5)
    assert not torch.equal(next(head.parameters()), after[0])
    assert all(torch.isfinite(each).all() for each in head.parameters())


def test_muon_is_refused_where_matrices_are_in_parts() -> None:
    check_optimizer("adamw", "all")
    check_optimizer("muon", "none")
    with pytest.raises(ValueError, match="--optimizer muon turns whole matrices, and --shard head"):
        check_optimizer("muon", "head")
    with pytest.raises(ValueError, match="optimizer 'lion' is unknown: one of muon, adamw"):
        TrainConfig(optimizer="lion")  # type: ignore[arg-type]
