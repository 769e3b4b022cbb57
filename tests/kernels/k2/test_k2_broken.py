"""What clusters must not do is noticed: each change of the sources below is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels.attention.k2.configurations import Configuration

VARIANT = Configuration(dtype=torch.float16, dim=64, rows=128)
FIRST = "leave(item, rows, sums);\n        cluster_arrive();\n        cluster_wait();"
LAST = "publish_shared();\n  cluster_arrive();\n  last.store();\n  cluster_wait();"
PRODUCER = (
    "cluster_arrive();\n      cluster_wait();\n      cluster_arrive();\n      cluster_wait();"
)
# One warpgroup of consumers is far behind the other.
SLOW_GROUP = (
    "wgmma.cuh", "if (threadIdx.x % 128 == 0) fibers::linger();",
    "for (int i = 0; i < 300 && threadIdx.x == 256; ++i) { ++fibers::progress; fibers::yield(); }",
)  # fmt: skip
SYNC = "consumers_sync<S::CONSUMERS>();"
BREAKAGE: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    "nothing": ([SLOW_GROUP], ""),
    "no wait for the others' results": (
        [("consumer.cuh", FIRST, "cluster_arrive();\n cluster_wait();\n leave(item, rows, sums);")],
        "read before the barrier that follows the write",
    ),
    "a program leaves before all have read": (
        [("combine.cuh", LAST, "publish_shared();\n last.store();")],
        "ended before all have read|read from an ended program|wait for each other",
    ),
    "the producer does not wait for the readers": (
        [("producer.cuh", PRODUCER, "cluster_arrive();\n cluster_wait();\n cluster_arrive();")],
        "written before all have read|arrived twice|ended before all have read",
    ),
    "the producer takes no part": (
        [("producer.cuh", PRODUCER, "")],
        "wait for each other|written before all have read|read before the barrier",
    ),
    "results over tiles that a neighbour still reads": (
        [("consumer.cuh", SYNC, ""), SLOW_GROUP],
        "wrong|not published|written before",
    ),
    "ordinary writes are not published to the next copies": (
        [("combine.cuh", "publish_shared();", "")],
        "copied over what was not published",
    ),
    "a share without positions is read": (
        [("combine.cuh", "if (share < item.shares)", "if (share < 1 << p.cluster_bits)")],
        "read before the barrier that follows the write|wrong",
    ),
    "a share is left out": (
        [("combine.cuh", "if (share < item.shares)", "if (share < item.shares - 1)")],
        "wrong",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKAGE)
def test_breakage_is_caught(
    make_batch: Callable[..., Any], emulate_changed: Callable[..., Any], name: str
) -> None:
    changes, expected = BREAKAGE[name]
    emulate = emulate_changed(VARIANT, changes)
    batch = make_batch((70, 3), (200, 0), heads=(1, 1), dim=64, dtype=torch.float16)
    want = batch.dense(0.125)[0]

    def run() -> None:
        for seed in range(2):
            got, _ = emulate(batch.arguments, scale=0.125, rows=128, programs=1, seed=seed, bits=1)
            assert (got.double() - want).abs().max() <= 2e-3, "wrong"

    if not expected:
        run()
        return
    with pytest.raises(AssertionError, match=expected):
        run()
