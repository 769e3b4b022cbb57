"""The operations of a layer in plain torch, and their signatures beside those of the kernels."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.stacks import KVPools, LayerOps, StackShape, TorchOps, TorchTreeAttention
from jetflow_kernels import tree_attention_reference
from jetflow_kernels.round.cache_write import norm_rope_kv_write, norm_rope_kv_write_reference
from torch import Tensor

HEADS, KV_HEADS, WIDTH, PAGE, PAGES = 4, 2, 16, 4, 6
OPS = TorchOps()


def rope_tables(positions: int) -> tuple[Tensor, Tensor]:
    angles = torch.rand(positions, WIDTH // 2) * 6
    return angles.cos(), angles.sin()


def pools() -> tuple[Tensor, Tensor]:
    keys, values = torch.randn(2, PAGES, PAGE, KV_HEADS, WIDTH).unbind(0)
    return keys.clone(), values.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(deadline=None, max_examples=20)
@given(
    rows=st.integers(1, 9), skipped=st.integers(0, 9), norms=st.booleans(), seed=st.integers(0, 999)
)
def test_the_cache_is_written_as_by_the_kernels_reference(
    rows: int, skipped: int, norms: bool, seed: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(seed)
    qkv = torch.randn(rows, (HEADS + 2 * KV_HEADS) * WIDTH).to(dtype)
    positions = torch.randint(0, 12, (rows,), dtype=torch.int32)
    slots = torch.randperm(PAGE * PAGES)[:rows]
    # Rows that go nowhere, on either side of the pool.
    nowhere = torch.tensor([-1, PAGE * PAGES])[torch.randint(0, 2, (rows,))]
    slots[:skipped] = nowhere[:skipped]
    weights = (torch.randn(2, WIDTH).to(dtype)) if norms else (None, None)
    # One position of the table's 10 lines may be missing: its row is NaN.
    cos, sin = rope_tables(10)
    mine, theirs = [[pool.to(dtype) for pool in pools()] for _ in range(2)]
    for mine_pool, their_pool in zip(mine, theirs, strict=True):
        their_pool.copy_(mine_pool)
    options = {"q_weight": weights[0], "k_weight": weights[1], "eps": 1e-5}
    found = OPS.norm_rope_kv_write(qkv, positions, cos, sin, slots, *mine, **options)
    wanted = norm_rope_kv_write_reference(qkv, positions, cos, sin, slots, *theirs, **options)
    for a, b in zip((found, *mine), (wanted, *theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_the_kernel_takes_what_the_protocol_asks() -> None:
    asked = dict(inspect.signature(LayerOps.norm_rope_kv_write).parameters)
    del asked["self"]
    taken = inspect.signature(norm_rope_kv_write).parameters
    assert list(asked) == [name for name in taken if name in asked]
    assert all(taken[name].kind is parameter.kind for name, parameter in asked.items())
    # What nobody asks for may be left out.
    others = [parameter for name, parameter in taken.items() if name not in asked]
    assert all(each.default is not each.empty for each in others)


@settings(deadline=None, max_examples=20)
@given(
    requests=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 7)), min_size=1, max_size=3),
    padding=st.integers(0, 3), seed=st.integers(0, 999),
)  # fmt: skip
def test_attention_is_that_of_the_kernels_reference(
    requests: list[tuple[int, int]], padding: int, seed: int
) -> None:
    torch.manual_seed(seed)
    most = 4
    table = torch.randperm(len(requests) * most).view(-1, most).int()
    shape = StackShape(
        vocab_size=2, hidden_size=2, intermediate_size=2, num_layers=1, num_heads=HEADS,
        num_kv_heads=KV_HEADS, head_dim=WIDTH, max_positions=16, rope_theta=1e4,
    )  # fmt: skip
    held = KVPools.allocate(
        shape, pages=len(requests) * most, page=PAGE, dtype=torch.float64, device="cpu"
    )
    for pool in (held.keys[0], held.values[0]):
        pool.normal_()
    counts = [count for _, count in requests]
    rows = sum(counts) + padding
    words = []
    for count in counts:
        seen = [1]
        for row in range(1, count):
            seen.append(seen[int(torch.randint(0, row, ()))] | (1 << row))
        words += seen[:count]
    rest = (
        table,
        torch.tensor([0, *counts]).cumsum(0).int(),
        torch.tensor([prefix for prefix, _ in requests], dtype=torch.int32),
        torch.tensor([*words, *[0] * padding], dtype=torch.int64)[:, None],
    )
    attend = TorchTreeAttention(
        pools=held, page_table=rest[0], cu_nodes=rest[1], prefix_len=rest[2], ancestors=rest[3]
    )
    q = torch.randn(rows, HEADS, WIDTH, dtype=torch.float64)
    wanted = tree_attention_reference(q, held.keys[0], held.values[0], *rest)
    torch.testing.assert_close(attend(0, q), wanted, rtol=0, atol=1e-12)


def test_a_sum_may_be_written_over_its_input_or_between_other_columns() -> None:
    torch.manual_seed(0)
    x, change, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    wide = torch.full((3, 24), math.nan)
    normed = OPS.add_rms_norm(x, change, weight, 1e-6, wide[:, 8:16])
    assert torch.equal(wide[:, 8:16], x + change)
    assert wide[:, :8].isnan().all() and wide[:, 16:].isnan().all()
    mean = (x + change).pow(2).mean(1, keepdim=True)
    torch.testing.assert_close(normed, (x + change) / (mean + 1e-6).sqrt() * weight)
    total = x + change
    assert torch.equal(OPS.add_rms_norm(x, change, weight, 1e-6, x), normed)
    assert torch.equal(x, total)


def test_silu_mul_gates_the_second_half() -> None:
    gate_up = torch.randn(3, 10)
    gate, up = gate_up[:, :5], gate_up[:, 5:]
    torch.testing.assert_close(OPS.silu_mul(gate_up), gate / (1 + (-gate).exp()) * up)
