"""The other steps of a round against their references, and all of them in one replayed graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels.check.attention_values import names
from jetflow_kernels.check.ends import ends_of_rounds, packed_batches
from jetflow_kernels.check.paths import pooled_paths
from jetflow_kernels.check.tasks import Task
from jetflow_kernels.check.writes import cache_writes, sampled_picks
from jetflow_kernels.round.accept import accept_walk, accept_walk_reference
from jetflow_kernels.round.ancestors import pack_ancestors, pack_ancestors_reference
from jetflow_kernels.round.argmax import pick_argmax, pick_argmax_reference
from jetflow_kernels.round.build import build_all_children, build_tree
from jetflow_kernels.round.build_reference import build_all_children_reference, build_tree_reference
from jetflow_kernels.round.commit import CachePools, commit_path, commit_path_reference
from jetflow_kernels.round.contests import Sizes, expect_equal, random_tree
from jetflow_kernels.round.slots import tree_slots, tree_slots_reference
from jetflow_kernels.round.topk import depth_topk, depth_topk_reference
from jetflow_kernels.round.whole import Round
from jetflow_kernels.rows import row_attention, row_attention_reference

# Equal ones, ones that rounding makes equal below a parent, certain ones and impossible ones.
TIES = (0.0, -0.0, -0.5, -0.5, -1.0, -1e-17, -1 - 2**-52, -torch.inf, -0.3, -0.1)

_LAYERS = (((32, 8), 128, True), ((32, 8), 128, False), ((9, 3), 64, False), ((4, 4), 256, True))
"""Query and key heads, their width, and whether they are normed."""


def requests(
    device: str, *, depth: int, width: int, lines: int, capacity: int, count: int, ties: bool,
    dtype: torch.dtype,
) -> dict[str, Any]:  # fmt: skip
    """Arguments of the builders: random budgets, one of them all of ``capacity``."""
    shape = (count, depth, lines, width)
    if ties:
        table = torch.tensor(TIES, dtype=torch.float64)[torch.randint(len(TIES), shape)]
    else:
        table = (2.0 * torch.randn(shape)).log_softmax(-1) - 0.05
    budgets = torch.randint(1, capacity + 1, (count,))
    budgets[0] = capacity
    order = torch.rand(count, depth, 4 * width).argsort(-1)[..., :width]
    return {
        "tokens": order.int().to(device),
        "log_probs": table.to(device, dtype),
        "roots": torch.arange(count, dtype=torch.int32, device=device),
        "budgets": budgets.to(device),
        "root_positions": torch.randint(0, 9999, (count,)).to(device),
        "capacity": capacity,
    }


def on_host(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same on the CPU, where references are quick to look at single values."""
    return {
        name: value.cpu() if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }


def builders(device: str, **sizes: Any) -> tuple[int, float]:
    """Both builders against the heap, every tensor bit by bit, and the words packed anew."""
    arguments = requests(device, **sizes)
    host = on_host(arguments)
    width = min(7, sizes["width"])
    for name, found, wanted in (
        ("build_tree", build_tree(**arguments), build_tree_reference(**host)),
        (
            "build_all_children",
            build_all_children(**arguments, width=width),
            build_all_children_reference(**host, width=width),
        ),
    ):
        expect_equal(name, tuple(found.tensors().values()), tuple(wanted.tensors().values()))
        packed = pack_ancestors(found.parents, found.num_nodes)
        expect_equal("pack_ancestors", packed[0], wanted.ancestors)
        expect_equal(
            "pack_ancestors",
            packed,
            pack_ancestors_reference(found.parents.cpu(), found.num_nodes.cpu()),
        )
    return 2 * sizes["count"], 0.0


def vocabulary(
    device: str, *, rows: int, tokens: int, count: int, dtype: torch.dtype
) -> tuple[int, float]:
    """Candidates and picks of logits with ties, infinities and NaN, and of plain ones."""
    error = 0.0
    for kind in ("plain", "ties", "broken"):
        logits = 3.0 * torch.randn(rows, tokens, device=device)
        if kind != "plain":
            logits = (logits * 4).round() / 4
        if kind == "broken":
            logits[0, 1::3] = -torch.inf
            logits[1, -1] = torch.nan
            logits[2, tokens // 2] = torch.inf
        logits = logits.to(dtype)
        found, wanted = depth_topk(logits, count), depth_topk_reference(logits, count)
        expect_equal("depth_topk", found.tokens, wanted.tokens)
        for a, b in ((found.log_probs, wanted.log_probs), (found.lse, wanted.lse)):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-5, equal_nan=True)
            error = max(error, float((a - b).nan_to_num().abs().max()))
        if (found.log_probs > 0).any():
            raise RuntimeError("a log-probability is above 0")
        expect_equal("pick_argmax", pick_argmax(logits), pick_argmax_reference(logits))
    return 6 * rows, error


def every_path(device: str, *, rows: int, depth: int) -> tuple[int, float]:
    """Every path of a tree as what the target picks, one request for each."""
    parents, _ = random_tree(rows, min(depth, rows - 1))
    above = parents[0].tolist()
    tokens = torch.arange(rows).int()
    picks = torch.full((rows, rows), -7, dtype=torch.int32)
    longest = 0
    for last in range(rows):
        row, steps = last, 0
        while row > 0:
            picks[last, above[row]] = tokens[row]
            row, steps = above[row], steps + 1
        longest = max(longest, steps)
    count = torch.full((rows,), rows, dtype=torch.int32)
    host = (tokens.expand(rows, -1), parents.expand(rows, -1), count, picks)
    given = tuple(tensor.to(device) for tensor in host)
    for most in (longest, max(1, longest // 2)):
        found = accept_walk(*given, max_depth=most)
        expect_equal("accept_walk", found, accept_walk_reference(*host, max_depth=most))
    return 2 * rows, 0.0


def every_move(
    device: str, *, tree: int, layers: int, page: int, dtype: torch.dtype, packed: bool, dim: int
) -> tuple[int, float]:
    """Every rising path of a small tree, so that rows move over one another in all ways."""
    paths = [(0, *rest) for size in range(tree) for rest in combinations(range(1, tree), size)]
    count, heads = len(paths), 2
    kept = torch.full((count, tree), -1, dtype=torch.int32)
    for request, path in enumerate(paths):
        kept[request, : len(path)] = torch.tensor(path, dtype=torch.int32)
    own = -(-(tree + page) // page)
    table = torch.randperm(count * own).view(count, own).int()
    prefix = torch.randint(0, page + 1, (count,)).int()
    slots = tree_slots(
        *(each.to(device) for each in (table, prefix, torch.full((count,), tree).int())),
        capacity=tree, page=page,
    )  # fmt: skip
    wanted_slots = tree_slots_reference(
        table, prefix, torch.full((count,), tree).int(), capacity=tree, page=page
    )
    expect_equal("tree_slots", slots, wanted_slots)
    pools: list[Tensor] = []
    for _ in range(layers):
        if packed:
            both = torch.randn(count * own, heads, page, 2 * dim, device=device).to(dtype)
            pools += [both[..., :dim].transpose(1, 2), both[..., dim:].transpose(1, 2)]
        else:
            shape = (count * own, page, heads, dim)
            pools += [torch.randn(shape, device=device).to(dtype) for _ in range(2)]
    features = torch.randn(count, tree, 24, device=device).to(dtype)
    # Clones of the memory's bytes, so that the reference works on the same layout.
    copies = [pool.clone(memory_format=torch.preserve_format) for pool in pools]
    table, prefix, kept = (each.to(device) for each in (table, prefix, kept))
    found = commit_path(CachePools.of(pools), table, prefix, kept, features)
    wanted = commit_path_reference(CachePools.of(copies), table, prefix, kept, features)
    expect_equal("commit_path", found, wanted)
    expect_equal("commit_path", tuple(pools), tuple(copies))
    return count * (2 * layers + 1), 0.0


def whole_rounds(device: str, *, sizes: Sizes, rounds: int) -> tuple[int, float]:
    """All steps in one graph, replayed on other logits, prefixes and budgets."""
    whole = Round.random(sizes, device)
    results = whole.run()
    replay: Callable[[], object] | None = None
    if device == "cuda":
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = whole.run()
        replay = graph.replay
    for number in range(rounds):
        whole.head_logits.copy_(whole.head_logits.roll(1 + number, dims=1))
        whole.target_logits.copy_(torch.randn_like(whole.target_logits))
        whole.budget.fill_(max(2, max(sizes.rows) - 3 * number))
        whole.cache.prefix.fill_(number * sizes.page // 2)
        whole.agree()
        if replay is None:
            results = whole.run()
        else:
            replay()
        whole.check(results)
    return 5 * rounds, 0.0


def plain_rows(device: str, *, dim: int, group: int, dtype: torch.dtype) -> tuple[int, float]:
    """Row attention at the borders of its tiles, NaN behind every length."""
    lengths = (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 150)
    shape = (len(lengths), 150, 2, dim)
    keys, values = (torch.randn(shape, device=device).to(dtype) for _ in range(2))
    for cache in (keys, values):
        for row, length in enumerate(lengths):
            cache[row, length:] = torch.nan
    queries = torch.randn(len(lengths), 2 * group, dim, device=device).to(dtype)
    seen = torch.tensor(lengths, dtype=torch.int32, device=device)
    out = torch.full_like(queries, torch.nan)
    row_attention(queries, keys, values, seen, out=out)
    want = row_attention_reference(queries, keys, values, seen)
    error = float((out.double() - want.double()).abs().max())
    allowed = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    if not error <= allowed:
        raise RuntimeError(f"off by {error}, allowed {allowed}")
    return len(lengths), error


def tasks(*, small: bool) -> Iterator[Task]:
    """The lists; ``small`` for Triton's interpreter."""

    def task(name: str, kind: torch.dtype | str, run: Any, /, **sizes: Any) -> Task:
        told = kind if isinstance(kind, str) else names(kind)
        case = ", ".join(
            f"{key} {names(value) if isinstance(value, torch.dtype) else value}"
            for key, value in sizes.items()
            if key != "sizes"
        )
        return Task(
            list=name, backend="triton", dtype=told, case=case, run=partial(run, **sizes),
            captures=run is whole_rounds,
        )  # fmt: skip

    floats = (torch.bfloat16, torch.float32, torch.float64)
    shapes: tuple[tuple[int, int], ...] = ((15, 16), (15, 7), (1, 1), (5, 33), (63, 3), (4, 128))
    if small:
        shapes = ((3, 3),)
    for number, (depth, width) in enumerate(shapes):
        for capacity in (12,) if small else (16, 64, 128, 256):
            for lines in {1, width}:
                for ties in (False, True):
                    dtype = floats[(number + lines + capacity // 64) % 3]
                    yield task(
                        "trees = heap", dtype, builders, depth=depth, width=width, lines=lines,
                        capacity=capacity, count=1 if small else 24, ties=ties, dtype=dtype,
                    )  # fmt: skip
    halves = (torch.float32,) if small else (torch.bfloat16, torch.float16, torch.float32)
    for dtype in halves:
        for rows, tokens, count in (
            ((3, 4500, 5),) if small else ((15, 151_936, 16), (256, 32_000, 7), (3, 151_936, 128))
        ):
            yield task(
                "logits", dtype, vocabulary, rows=rows, tokens=tokens, count=count, dtype=dtype
            )
        for rows, tokens in ((4, 700),) if small else ((256, 49_152), (12, 151_936)):
            yield task("sampled picks", dtype, sampled_picks, rows=rows, tokens=tokens, dtype=dtype)
        for heads, dim, norm in (((2, 1), 16, True),) if small else _LAYERS:
            for packed in (False, True):
                yield task(
                    "cache writes", dtype, cache_writes, heads=heads, dim=dim, dtype=dtype,
                    packed=packed, norm=norm,
                )  # fmt: skip
        for packed in (False, True):
            yield task(
                "accepted rows move", dtype, every_move, tree=4 if small else 8,
                layers=1 if small else 8, page=4 if packed else 16, dtype=dtype, packed=packed,
                dim=8 if small else 128,
            )  # fmt: skip
        for dim, group in ((16, 2),) if small else ((64, 3), (128, 4), (256, 8)):
            yield task("plain rows", dtype, plain_rows, dim=dim, group=group, dtype=dtype)
    for rows in (6,) if small else (17, 64, 256):
        yield task("every path accepted", "int32", every_path, rows=rows, depth=min(rows - 1, 12))
    for count, depth, width, pool in (
        ((2, 2, 3, 5),) if small else ((40, 14, 16, 64), (9, 62, 32, 99))
    ):
        yield task(
            "candidates along paths", torch.bfloat16, pooled_paths,
            count=count, depth=depth, width=width, pool=pool,
        )  # fmt: skip
    for count, capacity in ((2, 3),) if small else ((1, 256), (64, 64), (900, 16)):
        yield task("packed batches", "int32", packed_batches, requests=count, capacity=capacity)
    for steps in (3,) if small else (1, 16, 64):
        yield task(
            "ends of rounds", "int32", ends_of_rounds, requests=3 if small else 500, steps=steps
        )
    sizes = Sizes(layers=4, features=64)
    if small:
        sizes = Sizes(
            vocabulary=300, depth=3, candidates=3, rows=(8,), layers=1, heads=1, dim=8, page=4,
            accepted=2, features=4,
        )  # fmt: skip
    yield task(
        "whole rounds in one graph", torch.bfloat16, whole_rounds, sizes=sizes,
        rounds=2 if small else 8,
    )  # fmt: skip
