"""The lists and the entrant for swift kernels, with the reference in place of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention_reference
from jetflow_kernels.attention import bench
from jetflow_kernels.check import attention_swift
from jetflow_kernels.check.batches import Shape
from torch import Tensor

RUNS: list[Callable[..., tuple[int, float]]] = [
    attention_swift.lengths, attention_swift.cuts, attention_swift.queries, attention_swift.replays,
]  # fmt: skip


def _stand_in(
    arguments: dict[str, Any], out: Tensor, lse: Tensor, *, off: float = 0.0, **how: Any
) -> None:
    scale = how.get("scale")
    tree_attention_reference(**arguments, out=out, lse=lse, scale=scale)
    if how.get("swift"):
        out[: int(arguments["cu_nodes"][-1])] += off


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
@pytest.mark.parametrize("off", [0.0, 0.01])
def test_another_bit_is_noticed(
    monkeypatch: pytest.MonkeyPatch, run: Callable[..., tuple[int, float]], off: float
) -> None:
    monkeypatch.setattr(attention_swift, "start", partial(_stand_in, off=off))
    monkeypatch.setattr(attention_swift, "NODES", (1, 5))
    monkeypatch.setattr(attention_swift, "PREFIXES", (0, 9))
    monkeypatch.setattr(attention_swift, "CUT", (((5,), (70,)), ((2, 0), (9, 1))))
    monkeypatch.setattr(attention_swift, "TURNS", (5, 0, 2))
    call = partial(run, "cpu", shape=Shape(heads=(2, 1), dim=64, dtype=torch.float16))
    if off:
        with pytest.raises(RuntimeError, match="other bits in rows"):
            call()
    else:
        checks, error = call()
        assert checks > 4 and error < 2e-3


def test_lists_are_of_the_cuda_version_alone() -> None:
    assert not list(attention_swift.tasks(["triton", "flash"], small=False))
    assert not list(attention_swift.tasks(["cuda"], small=True))
    tasks = list(attention_swift.tasks(["triton", "cuda"], small=False))
    assert {task.backend for task in tasks} == {"cuda"}
    assert {task.list for task in tasks if task.captures} == {"swift: graph replays"}
    assert len({task.list for task in tasks}) == 4


def test_it_is_timed_as_one_of_ours() -> None:
    case = {"requests": 1, "prefix": 1024, "rows": 64, "page": 128, "layers": 36}
    results = [
        {**case, "backend": name, "median_us": time}
        for name, time in (("cuda", 10.0), (bench.SWIFT, 5.0), ("sdpa", 30.0))
    ]
    bench.compare(results)
    assert [one.get("ratios") for one in results] == [{"sdpa": 3.0}, {"sdpa": 6.0}, None]
