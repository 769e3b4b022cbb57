"""What a pass reads, counted against weights that exist and figures worked out by hand."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from jetflow_core.stacks import (
    NAMED_SHAPES,
    ExpertShape,
    KVPools,
    StackShape,
    bytes_per_pass,
    named_shape,
    random_stack,
)
from jetflow_core.stacks.random_weights import made_weights

TINY = StackShape(
    vocab_size=50, hidden_size=16, intermediate_size=24, num_layers=3, num_heads=4,
    num_kv_heads=2, head_dim=6, max_positions=40, rope_theta=1e4,
)  # fmt: skip
MIXED = replace(
    TINY, qkv_bias=True, output_bias=True, head_norms=True,
    experts=ExpertShape(count=4, chosen=2, intermediate_size=8, dense_layers=(1,)),
)  # fmt: skip


def size_of(holder: Any) -> int:
    total = 0
    for field in fields(holder):
        value = getattr(holder, field.name)
        for each in value if isinstance(value, tuple) else (value,):
            if is_dataclass(each):
                total += size_of(each)
            elif isinstance(each, torch.Tensor):
                total += each.numel()
    return total


@pytest.mark.parametrize("shape", [TINY, MIXED, replace(TINY, tied=True)])
def test_a_pass_of_many_rows_reads_every_weight_once(shape: StackShape) -> None:
    stack = random_stack(shape, dtype=torch.float32)
    embedding = stack.embed_tokens.numel()
    # So many rows that each expert is chosen; of the embedding only the rows' own lines are read.
    rows = 200
    read = bytes_per_pass(shape, rows=rows, context=0, element_bytes=4).weight_bytes / 4
    lines = 0 if shape.tied else rows * shape.hidden_size
    assert read == pytest.approx(size_of(stack.weights) - embedding + lines, rel=1e-9)


class OnMeta:
    """Weights of a real shape that take no memory."""

    def matrix(self, *sizes: int) -> torch.Tensor:
        return torch.empty(sizes, device="meta")

    def norm(self, size: int) -> torch.Tensor:
        return torch.empty(size, device="meta")


@pytest.mark.parametrize(
    ("name", "millions"), [("qwen3-8b", 8191), ("qwen3-30b-a3b", 30532), ("smollm2-135m", 135)]
)
def test_a_named_shape_has_the_parameters_of_its_model(name: str, millions: int) -> None:
    weights = made_weights(named_shape(name), OnMeta())
    shared = weights.lm_head.numel() if weights.lm_head is weights.embed_tokens else 0
    assert round((size_of(weights) - shared) / 1e6) == millions
    assert list(NAMED_SHAPES).count(name) == 1


def test_one_row_reads_the_experts_it_chose_and_more_rows_never_fewer() -> None:
    shape = named_shape("qwen3-30b-a3b")
    figures = [bytes_per_pass(shape, rows=rows, context=0) for rows in (1, 16, 64, 10_000)]
    assert figures[0].weight_bytes == pytest.approx(6.1e9, rel=0.01)
    assert figures[2].weight_bytes == pytest.approx(59.5e9, rel=0.01)
    assert sorted(each.weight_bytes for each in figures) == [each.weight_bytes for each in figures]
    per_row = {
        round(each.weight_flops / rows)
        for each, rows in zip(figures, (1, 16, 64, 10_000), strict=True)
    }
    assert len(per_row) == 1


@pytest.mark.parametrize(
    ("name", "rows", "context", "requests", "milliseconds"),
    [
        ("qwen3-8b", 1, 512, 1, 3.54),
        ("qwen3-8b", 1, 32_768, 1, 4.64),
        ("qwen3-8b", 256, 512, 1, 3.54 * 1.43),
        ("qwen3-8b", 64, 32_768, 1, 4.64 * 1.10),
        ("qwen3-8b", 1, 512, 8, 3.66),
        ("qwen3-30b-a3b", 1, 512, 1, 1.43),
        ("qwen3-30b-a3b", 64, 512, 1, 1.43 * 9.73),
        ("smollm2-135m", 1, 512, 1, 0.065),
    ],
)
def test_the_floor_of_an_h200(
    name: str, rows: int, context: int, requests: int, milliseconds: float
) -> None:
    # Worked out by another hand, from 4.3 TB/s and 790 TFLOP/s, with two or three digits.
    traffic = bytes_per_pass(named_shape(name), rows=rows, context=context, requests=requests)
    floor = traffic.floor(bytes_per_second=4.3e12, flops_per_second=790e12)
    assert floor * 1e3 == pytest.approx(milliseconds, rel=0.02)


def test_cache_bytes_are_those_of_the_pools_rows() -> None:
    pools = KVPools.allocate(TINY, pages=2, page=5, dtype=torch.float16, device="cpu")
    held = sum(pool.numel() * 2 for pool in (*pools.keys, *pools.values))
    traffic = bytes_per_pass(TINY, rows=3, context=7, requests=1)
    assert traffic.cache_bytes == held
    assert traffic.bytes == held + traffic.weight_bytes
    doubled = bytes_per_pass(TINY, rows=3, context=7, requests=2)
    assert doubled.cache_bytes == 2 * held
    assert doubled.cache_flops == 2 * traffic.cache_flops
    # Each of 3 rows multiplies 10 keys and 10 values of 4 heads of 6, in 3 layers.
    assert traffic.cache_flops == 2 * 3 * 3 * 10 * 2 * 24


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"rows": 0}, "rows is 0"), ({"context": -1}, "context is -1"), ({"requests": 0}, "requests")],
)
def test_numbers_out_of_range_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bytes_per_pass(TINY, **{"rows": 1, "context": 1, **changes})
    traffic = bytes_per_pass(TINY, rows=1, context=1)
    with pytest.raises(ValueError, match="flops_per_second is 0"):
        traffic.floor(bytes_per_second=1.0, flops_per_second=0.0)
