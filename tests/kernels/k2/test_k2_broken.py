"""What clusters must not do is noticed: each change of the sources below is caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels.attention.k2.configurations import Configuration

VARIANT = Configuration(dtype=torch.float16, dim=64, rows=128)
SYNC = "cluster_sync();\n    STAMP(CLUSTER);\n    const bool mine"
PRODUCER = "cluster_sync();\n      wait_for_consumers<S::THREADS>();"
WEIGHT = "exp2_fast(its.x - "
ARRIVAL = (
    "barrier_wait(shared.received(), parities & 1);\n      parities ^= 1;\n    }\n"
    "    STAMP(ARRIVED);\n    if (mine)"
)
KEYS = (
    "barrier_wait(shared.keys_full(keys.stage), keys.parity);\n    STAMP(COUNT == SCORES / 2 ? KEYS"
)
EMPTY = "barrier_wait(shared.keys_empty(ring.stage), ring.parity ^ 1);"
# One warpgroup of consumers is far behind the other.
SLOW_GROUP = (
    "wgmma.cuh", "if (threadIdx.x % 128 == 0) fibers::linger();",
    "for (int i = 0; i < 300 && threadIdx.x == 256; ++i) { ++fibers::progress; fibers::yield(); }",
)  # fmt: skip
BREAKAGE: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    "nothing": ([SLOW_GROUP], ""),
    "keys are multiplied before they have arrived": (
        [("consumer.cuh", KEYS, "STAMP(COUNT == SCORES / 2 ? KEYS")],
        "wrong|not published",
    ),
    "a parity of the ring is wrong": (
        [("producer.cuh", EMPTY, EMPTY.replace(" ^ 1", ""))],
        "wait for each other",
    ),
    "results are sent over tiles that others still read": (
        [
            ("consumer.cuh", SYNC, "const bool mine"),
            ("producer.cuh", PRODUCER, "wait_for_consumers<S::THREADS>();"),
            SLOW_GROUP,
        ],
        "wrong|not published",
    ),
    "results are read before they have arrived": (
        [("consumer.cuh", ARRIVAL, "}\n    if (mine)")],
        "wrong|ended program",
    ),
    "the producer does not wait for the readers": (
        [("producer.cuh", PRODUCER, "cluster_sync();"), SLOW_GROUP],
        "wrong|wait for each other|ended program",
    ),
    "the producer takes no part": (
        [("producer.cuh", PRODUCER, "")],
        "wrong|wait for each other|ended program",
    ),
    "more is awaited than is sent": (
        [("combine.cuh", "item.shares - (rank < item.shares)", "item.shares")],
        "wait for each other",
    ),
    "less is awaited than is sent": (
        [("combine.cuh", "return slabs * others", "return (slabs - 1) * others")],
        "wrong|wait for each other|ended program",
    ),
    "a share is left out": (
        [("combine.cuh", WEIGHT, "exp2_fast(share == 1 ? -INFINITY : its.x - ")],
        "wrong",
    ),
    "a slab goes to the wrong slot": (
        [("combine.cuh", "slab.place * p.cluster + slab.rank", "slab.place * p.cluster")],
        "wrong",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKAGE)
def test_breakage_is_caught(
    make_batch: Callable[..., Any], emulate_changed: Callable[..., Any], name: str
) -> None:
    changes, expected = BREAKAGE[name]
    emulate = emulate_changed(VARIANT, changes)
    batch = make_batch((70, 3), (200, 150), heads=(1, 1), dim=64, dtype=torch.float16)
    want = batch.dense(0.125)[0]

    def run() -> None:
        for seed in range(3):
            got, _ = emulate(
                batch.arguments, scale=0.125, rows=128, programs=1, seed=seed, cluster=3
            )
            assert (got.double() - want).abs().max() <= 2e-3, "wrong"

    if not expected:
        run()
        return
    with pytest.raises(AssertionError, match=expected):
        run()
