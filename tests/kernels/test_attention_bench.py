"""What can be held of the benchmark without a GPU."""

import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention_reference
from jetflow_kernels.attention import bench, peers
from torch.nn.attention.flex_attention import flex_attention

TIMES = {"median_us": 10.0, "p10_us": 9.5, "p90_us": 11.0, "share_of_floor": 0.4}
CASE = {"requests": 1, "prefix": 1024, "rows": 64, "page": 128, "layers": 36}


def test_floor_is_the_slower_of_memory_and_arithmetic() -> None:
    plain = bench.Case(rows=1, prefix=2048)
    assert plain.floor_us(4.3e12, 7.9e14) == pytest.approx(1.96, abs=0.01)
    tree = bench.Case(rows=128, prefix=2048)
    assert tree.floor_us(4.3e12, 7.9e14) == pytest.approx(5.78, abs=0.01)
    two = bench.Case(rows=128, prefix=2048, requests=2)
    assert two.floor_us(4.3e12, 7.9e14) == pytest.approx(2 * tree.floor_us(4.3e12, 7.9e14))


def test_trees_are_closed_under_parents() -> None:
    torch.manual_seed(0)
    words = bench._random_trees(bench.Case(rows=70, prefix=0, requests=2))
    assert words.shape == (140, 2)
    bits = ((words[:, :, None] >> torch.arange(64)) & 1).flatten(1)[:, :70]
    assert (bits[:, 0] == 1).all()
    assert (bits.view(2, 70, 70).diagonal(dim1=1, dim2=2) == 1).all()


def test_no_device_is_said_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        bench.main(["--out", str(tmp_path / "result.json")])
    assert "needs a CUDA device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["sdpa", "sdpa-repeated", pytest.param("flex", marks=pytest.mark.slow)]
)
def test_peers_compute_what_we_compute(
    make_batch: Callable[..., Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Compiling it is for a GPU; what it is given is the same.
    monkeypatch.setattr(peers, "_compiled_flex", lambda: flex_attention)
    batch = make_batch((9, 9), (21, 21), dim=16, dtype=torch.float32, padding=0)
    want = tree_attention_reference(**batch.arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Running it uncompiled is warned of.
        got = peers.PEERS[name].enter(batch.arguments)()
    torch.testing.assert_close(got, want, rtol=0, atol=2e-6)


def test_absent_peers_are_named_and_left_out() -> None:
    gone = peers.Peer(enter=peers.sdpa, module="no_such.module", package="none")
    assert gone.version() is None
    versions = peers.versions()
    assert versions["sdpa"] == metadata.version("torch")
    assert set(versions) == set(peers.PEERS)
    absent = [name for name, version in versions.items() if version == "absent"]
    assert list(bench.choose(["triton"], ["sdpa", *absent])) == ["triton", "sdpa"]


def test_ratios_are_of_the_same_case() -> None:
    ours = {**CASE, **TIMES, "backend": "triton"}
    other = {**CASE, **TIMES, "backend": "sdpa", "median_us": 35.0}
    elsewhere = {**CASE, **TIMES, "backend": "flex", "rows": 128}
    broken = {**CASE, "backend": "flashinfer", "failed": "RuntimeError: no"}
    bench.compare([ours, other, elsewhere, broken])
    assert ours["ratios"] == {"sdpa": 3.5}
    assert "ratios" not in other
    assert bench.line(ours).endswith("40 % of the floor's speed  sdpa x3.5")
    assert bench.line(broken).endswith("FAILED: RuntimeError: no")


def test_what_is_wrong_is_not_timed() -> None:
    want = torch.zeros(2, 2, dtype=torch.float16)
    assert bench.check(lambda: want + 1e-3, want) < 2e-3
    for wrong in (want + 1.0, want * torch.nan):
        with pytest.raises(RuntimeError, match="it is off by"):
            bench.check(lambda wrong=wrong: wrong, want)
