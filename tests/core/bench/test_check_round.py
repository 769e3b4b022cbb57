"""Benchmarks of the fast engine refuse, before any work, what the steps of a round do not take."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jetflow_core.rounds
import pytest
import torch
from jetflow_core.bench.checks import check_round
from jetflow_core.bench.engine.run import run_engine
from jetflow_core.bench.engine.settings import EngineSettings
from jetflow_core.bench.engine_lossless.run import run_engine_lossless
from jetflow_core.bench.engine_lossless.settings import EngineLosslessSettings
from jetflow_core.commands.bench_engine_lossless import command
from jetflow_core.rounds import RoundBackend, TorchRoundOps


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of a name of their own on every device."""

    def found(device: torch.device) -> RoundBackend:
        return RoundBackend("kernels", TorchRoundOps())

    monkeypatch.setattr(jetflow_core.rounds, "round_ops_for", found)


def test_torch_takes_everything() -> None:
    check_round("cpu", page=1, batch=4096, dtype="float64", head_dims={"target": 5})


@pytest.mark.usefixtures("kernels")
def test_kernels_take_what_the_benchmarks_ask_for_by_themselves() -> None:
    lossless, engine = EngineLosslessSettings(), EngineSettings(shape="qwen3-8b", budgets=(1,))
    assert command.__kwdefaults__["page"] == lossless.page
    for each in (lossless, engine):
        check_round("cpu", page=each.page, batch=each.batch, head_dims={"target": 64, "head": 128})


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"page": 8}, "page 8 is out of range for the round's steps kernels on cpu: 16 to 256"),
        ({"page": 512}, "page 512 is out of range"),
        ({"batch": 2048}, "batch 2048 is out of range .*: 1 to 1024"),
        ({"dtype": "float64"}, "dtype float64 is too wide"),
        ({"head_dims": {"head": 80}}, "the head has head dim 80, .* it is one of 64, 128, 256"),
    ],
)
def test_what_kernels_do_not_take_is_named(given: dict[str, Any], message: str) -> None:
    fits: dict[str, Any] = {"page": 16, "batch": 16}
    check_round("cpu", **fits)
    with pytest.raises(ValueError, match=message):
        check_round("cpu", **{**fits, **given})


@pytest.mark.usefixtures("kernels")
def test_benchmarks_refuse_before_they_load_anything(
    tiny_target_folder: Path, tiny_head_folder: Path
) -> None:
    lossless = EngineLosslessSettings(
        page=8, target=str(tiny_target_folder), head=str(tiny_head_folder)
    )
    with pytest.raises(ValueError, match="page 8 is out of range"):
        run_engine_lossless(lossless)
    with pytest.raises(ValueError, match="the target has head dim 16"):
        run_engine_lossless(replace(lossless, page=16))
    with pytest.raises(ValueError, match="page 8 is out of range"):
        run_engine(EngineSettings(shape="qwen3-8b", budgets=(1,), page=8))
