"""Whose steps a round takes is found by entry points, and told."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import torch
from jetflow_core.rounds import TorchRoundOps, round_ops_for
from jetflow_core.rounds.find import GROUP

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def _entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_a_gpu_takes_the_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("some_steps")
    monkeypatch.setitem(sys.modules, "some_steps", module)
    chosen = round_ops_for(CUDA, [_entry("z", "no_such_package"), _entry("a", "some_steps")])
    assert (chosen.name, chosen.ops) == ("a", module)


def test_without_them_or_without_a_gpu_torch_does_it() -> None:
    broken = [_entry("a", "no_such_package")]
    for device, offered in ((CUDA, []), (CPU, []), (CPU, broken)):
        chosen = round_ops_for(device, offered)
        assert chosen.name == "torch"
        assert isinstance(chosen.ops, TorchRoundOps)


@pytest.mark.parametrize("value", ["no_such_package", "jetflow_core.rounds:no_such_name"])
def test_steps_that_cannot_be_loaded_are_named_and_not_passed_over(value: str) -> None:
    with pytest.raises(RuntimeError, match=f"steps a .{value}. are installed and cannot be loaded"):
        round_ops_for(CUDA, [_entry("a", value)])
