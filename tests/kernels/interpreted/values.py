"""Every version equals the float64 reference over pairs of shapes, masks and layouts.

On the CPU with TRITON_INTERPRET=1; without it the same lists run on a CUDA device.
"""

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from jetflow_kernels import tree_attention, tree_attention_reference
from jetflow_kernels.attention import plan
from jetflow_kernels.attention.launch import INTERPRETED
from jetflow_kernels.attention.worklist import chunk_lengths

DEVICE = "cpu" if INTERPRETED else "cuda"
ATOL = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
# Nodes and prefixes: word, page, tile and chunk borders, N = 1, no prefix, a request without rows.
BATCHES = (
    ((1,), (0,)),
    ((1, 1, 1), (1, 127, 129)),
    ((2, 15, 17), (15, 16, 64)),
    ((9,), (300,)),
    ((3, 0, 5), (128, 7, 200)),
    ((31, 1), (0, 33)),
    ((65,), (31,)),
    ((129,), (5,)),
)
LONG = (((16, 63), (65, 128)), ((64, 127), (17, 1)), ((255, 3), (130, 600)), ((256,), (9,)))
AXES: dict[str, tuple[Any, ...]] = {
    "batch": BATCHES,
    "mask": ("random", "chain", "star", "binary", "caterpillar", "shuffled"),
    "heads": ((1, 1), (2, 1), (3, 1), (4, 2), (8, 1)),
    "page": (16, 48, 64, 128, 256),
    "dtype": (torch.float16, torch.float32, torch.bfloat16),
    "layout": ("separate", "packed"),
    "dim": (64, 128),
}
QUICK = 4
# In the interpreter a case takes seconds, so a CPU runs every eighth one; a GPU runs all, and more.
EVERY = 8 if DEVICE == "cpu" else 1
DEEP = () if DEVICE == "cpu" else (((200, 64), (5000, 2049)), ((33,), (4096,)))
LONG_DIMS = (64, 256) if DEVICE == "cpu" else (64, 128, 256)
SCALED = (torch.float32,) if DEVICE == "cpu" else (torch.float32, torch.float16)


def _pairwise(axes: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Cases in which every two values of different axes meet, those with the most new pairs first.

    Deterministic, and the order makes any beginning of the list a good sample.
    """
    names = list(axes)
    missing = {
        ((a, i), (b, j))
        for a, b in combinations(names, 2)
        for i, j in product(range(len(axes[a])), range(len(axes[b])))
    }
    cases = []
    while missing:
        chosen = dict(min(missing))
        for name in names:
            if name not in chosen:
                chosen[name] = max(
                    range(len(axes[name])),
                    key=lambda i: (
                        sum(_pair(names, name, i, *other) in missing for other in chosen.items()),
                        (i + len(cases)) % len(axes[name]),
                    ),
                )
        missing -= {((a, chosen[a]), (b, chosen[b])) for a, b in combinations(names, 2)}
        cases.append({name: axes[name][chosen[name]] for name in names})
    return cases


def _pair(names: list[str], a: str, i: int, b: str, j: int) -> Any:
    first, second = sorted(((a, i), (b, j)), key=lambda one: names.index(one[0]))
    return first, second


CASES = _pairwise(AXES)
QUICK_CASES = CASES[:: -(-len(CASES) // QUICK)]
LONG_CASES = [case for case in CASES[1::EVERY] if case not in QUICK_CASES]


@pytest.fixture
def check(
    make_batch: Callable[..., Any],
    moved_together: Callable[..., list[torch.Tensor]],
    backend: str,
) -> Callable[..., None]:
    """Holds one case against the reference, or a case the version does not take to its refusal."""

    def check(case: dict[str, Any], **calls: Any) -> None:
        if backend == "cuda" and (case["dtype"] == torch.float32 or case["dim"] == 256):
            with pytest.raises(ValueError, match="backend 'cuda' does not take these arguments"):
                _check(make_batch, moved_together, case, backend=backend, **calls)
        else:
            _check(make_batch, moved_together, case, backend=backend, **calls)

    return check


def _check(
    make_batch: Callable[..., Any],
    moved_together: Callable[..., list[torch.Tensor]],
    case: dict[str, Any],
    backend: str,
    **calls: Any,
) -> None:
    nodes, prefixes = case["batch"]
    batch = make_batch(
        nodes,
        prefixes,
        **{name: case[name] for name in ("page", "heads", "dim", "dtype", "mask")},
    )
    arguments = dict(batch.arguments)
    if case["layout"] == "packed":
        packed = torch.cat([batch.k_pool, batch.v_pool], dim=-1).transpose(1, 2).contiguous()
        dim = case["dim"]
        arguments["k_pool"] = packed[..., :dim].transpose(1, 2)
        arguments["v_pool"] = packed[..., dim:].transpose(1, 2)
        fused = torch.cat([batch.q, batch.q], dim=-1)
        arguments["q"] = fused[..., :dim]
    lse, want_lse = (torch.full(batch.q.shape[:2], torch.nan) for _ in range(2))
    lse, out = lse.to(DEVICE), torch.full_like(batch.q, torch.nan, device=DEVICE)
    placed = moved_together(list(arguments.values()), DEVICE)
    arguments = dict(zip(arguments, placed, strict=True))
    got = tree_attention(**arguments, out=out, lse=lse, backend=backend, **calls)
    want = tree_attention_reference(**batch.arguments, lse=want_lse, **calls)
    assert got is out
    torch.testing.assert_close(got.cpu().double(), want.double(), rtol=0, atol=ATOL[case["dtype"]])
    torch.testing.assert_close(lse.cpu(), want_lse, rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", QUICK_CASES, ids=str)
def test_pairs_in_short(check: Callable[..., None], case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", LONG_CASES, ids=str)
def test_all_pairs(check: Callable[..., None], case: dict[str, Any]) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("batch", (*LONG[::EVERY], *DEEP), ids=str)
@pytest.mark.parametrize("dim", LONG_DIMS)
def test_long_trees(check: Callable[..., None], batch: Any, dim: int) -> None:
    case = {"batch": batch, "mask": "shuffled", "heads": (2, 1), "page": 16}
    check({**case, "dtype": torch.float16, "layout": "separate", "dim": dim})


@pytest.mark.parametrize("scale", [-0.3, 0.0])
@pytest.mark.parametrize("dtype", SCALED)
def test_any_finite_scale(check: Callable[..., None], scale: float, dtype: torch.dtype) -> None:
    case = {"batch": ((5,), (150,)), "mask": "random", "heads": (2, 1), "page": 16, "dim": 64}
    check({**case, "dtype": dtype, "layout": "separate"}, scale=scale)


@triton.jit
def _chunks(prefix, rows, found, HEADS: tl.constexpr, COUNT: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, COUNT)
    tl.store(found + at, chunk_lengths(tl.load(prefix + at), tl.load(rows + at), HEADS))


@pytest.mark.parametrize("heads", [1, 9, 32, 64])
def test_device_and_plan_cut_alike(heads: int) -> None:
    torch.manual_seed(heads)
    prefix = torch.randint(0, 60_000, (1024,), dtype=torch.int32)
    rows = torch.randint(1, 257, (1024,), dtype=torch.int32)
    rows[:9] = 1 << torch.arange(9, dtype=torch.int32)
    found = torch.zeros_like(prefix, device=DEVICE)
    _chunks[(1,)](prefix.to(DEVICE), rows.to(DEVICE), found, HEADS=heads, COUNT=1024)
    want = [
        plan.chunk_length(p, n, heads) for p, n in zip(prefix.tolist(), rows.tolist(), strict=True)
    ]
    assert found.tolist() == want
