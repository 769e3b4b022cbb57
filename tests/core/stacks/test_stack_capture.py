"""A pass in a CUDA graph: the same as without one, for other rows in the same tensors."""

import pytest
import torch
from jetflow_core.stacks import (
    ExpertShape,
    KVPools,
    PackedRows,
    StackShape,
    random_stack,
)

MIXED = StackShape(
    vocab_size=64, hidden_size=64, intermediate_size=96, num_layers=3, num_heads=4,
    num_kv_heads=2, head_dim=16, max_positions=64, rope_theta=1e4, head_norms=True,
    experts=ExpertShape(count=8, chosen=2, intermediate_size=32, dense_layers=(1,)),
)  # fmt: skip
ROWS, PAGE = 5, 4


def random_rows(seed: int) -> PackedRows:
    made = torch.Generator().manual_seed(seed)
    slots = torch.randperm(3 * PAGE, generator=made)[:ROWS]
    slots[seed % ROWS] = -1
    return PackedRows(
        tokens=torch.randint(0, 64, (ROWS,), generator=made).cuda(),
        positions=torch.randint(0, 64, (ROWS,), generator=made).cuda(),
        slots=slots.cuda(),
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_one_graph_serves_other_rows(dtype: torch.dtype) -> None:
    stack = random_stack(MIXED, device="cuda", dtype=dtype, taps=(2, 0))
    pools = KVPools.allocate(MIXED, pages=3, page=PAGE, dtype=dtype, device="cuda")
    features = torch.zeros(ROWS, stack.feature_size, dtype=dtype, device="cuda")
    static = random_rows(0)

    # Whatever the attention is: here each query answers for itself.
    def whole_pass() -> torch.Tensor:
        return stack.logits(stack.forward(static, pools, lambda layer, q: q, features))

    whole_pass()  # Kernels are loaded on their first call, which a capture forbids.
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # A capture fails on any synchronisation of the host.
    with torch.cuda.graph(graph):
        captured = whole_pass()
    for seed in range(1, 4):
        rows = random_rows(seed)
        for name in ("tokens", "positions", "slots"):
            getattr(static, name).copy_(getattr(rows, name))
        graph.replay()
        found = [captured, features, *pools.keys, *pools.values]
        found = [each.clone() for each in found]
        expected = whole_pass()
        torch.testing.assert_close(found[0], expected, rtol=0, atol=0)
        for a, b in zip(found[1:], (features, *pools.keys, *pools.values), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
