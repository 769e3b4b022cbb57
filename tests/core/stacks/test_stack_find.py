"""Whose operations a layer takes is found by entry points, and told."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
from jetflow_core.stacks import TorchOps, layer_ops_for
from jetflow_core.stacks.find import GROUP


def _entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_a_gpu_takes_the_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("some_operations")
    monkeypatch.setitem(sys.modules, "some_operations", module)
    offered = [_entry("z", "no_such_package"), _entry("a", "some_operations")]
    chosen = layer_ops_for("cuda:1", offered)
    assert (chosen.name, chosen.ops) == ("a", module)


def test_without_them_or_without_a_gpu_torch_does_it() -> None:
    broken = [_entry("a", "no_such_package")]
    for device, offered in (("cuda", []), ("cpu", []), ("cpu", broken), ("cpu", None)):
        chosen = layer_ops_for(device, offered)
        assert chosen.name == "torch"
        assert isinstance(chosen.ops, TorchOps)


@pytest.mark.parametrize("value", ["no_such_package", "jetflow_core.stacks:no_such_name"])
def test_operations_that_cannot_be_loaded_are_named_and_not_passed_over(value: str) -> None:
    message = f"layer operations a .{value}. are installed and cannot be loaded"
    with pytest.raises(RuntimeError, match=message):
        layer_ops_for("cuda", [_entry("a", value)])
