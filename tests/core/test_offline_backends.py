"""Which attention decodes rows is found by entry points, and told."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
import torch
from jetflow_core.offline import MaskedAttention, row_attention_for
from jetflow_core.offline.backends import GROUP

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def _entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_a_gpu_takes_the_installed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("some_rows")
    module.attend = lambda queries, keys, values, lengths, longest: queries
    monkeypatch.setitem(sys.modules, "some_rows", module)
    offered = [_entry("later", "no_such_package:attend"), _entry("early", "some_rows:attend")]
    chosen = row_attention_for(CUDA, offered)
    assert (chosen.name, chosen.attend) == ("early", module.attend)


def test_without_one_or_without_a_gpu_torch_attends() -> None:
    broken = [_entry("triton", "no_such_package:attend")]
    for device, offered in ((CUDA, []), (CPU, []), (CPU, broken)):
        chosen = row_attention_for(device, offered)
        assert chosen.name == "masked"
        assert isinstance(chosen.attend, MaskedAttention)


@pytest.mark.parametrize("value", ["no_such_package:attend", "jetflow_core.offline:no_such_name"])
def test_one_that_cannot_be_loaded_is_named_and_not_passed_over(value: str) -> None:
    with pytest.raises(RuntimeError, match=f"row attention triton .{value}. .* cannot be loaded"):
        row_attention_for(CUDA, [_entry("triton", value)])


def test_what_the_kernels_declare_fits_the_call() -> None:
    import tomllib
    from inspect import signature
    from pathlib import Path

    from jetflow_core.offline import RowAttention

    package = Path(__file__).parents[2] / "packages" / "jetflow-kernels" / "pyproject.toml"
    declared = tomllib.loads(package.read_text("utf-8"))["project"]["entry-points"][GROUP]
    assert list(declared) == ["triton"]
    chosen = row_attention_for(CUDA, [_entry(*item) for item in declared.items()])
    wanted = list(signature(RowAttention.__call__).parameters)[1:]
    assert list(signature(chosen.attend).parameters) == wanted
