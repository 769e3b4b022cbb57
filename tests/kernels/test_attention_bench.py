"""What can be held of the benchmark without a GPU."""

from pathlib import Path

import pytest
import torch
from jetflow_kernels.attention import bench


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
