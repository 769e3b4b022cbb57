"""Times every builder beside a plain heap, in one run and with one input and output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter

import numpy as np

from jetflow_tree.baselines import AllChildren, Chain
from jetflow_tree.build import BestFirst, best_first_paths
from jetflow_tree.candidates import Candidates
from jetflow_tree.frontier import Frontier
from jetflow_tree.reference import ReadyLists, heap_over_lists, plain_heap
from jetflow_tree.tree import Tree

BUDGETS = (16, 32, 64, 128, 256)
_ROOT = 1
_VOCABULARY = 1000

Work = Callable[[], object]


def run(
    *,
    budgets: Sequence[int] = BUDGETS,
    depth: int = 16,
    width: int = 16,
    repeats: int = 100,
    seed: int = 0,
    on_progress: Callable[[str], None] | None = None,
) -> dict[str, object]:
    """Time the builders on random candidates of a trained head's sharpness.

    All kinds of work on one table and budget take turns, so that a change of the machine's speed
    hits each of them. A ratio is the median time of a builder over the median time of the plain
    heap on the same table and budget; below 1 the builder is faster.

    Args:
        budgets: Rows of the trees, root included.
        depth: Depths of the candidates.
        width: Candidates a depth.
        repeats: Timed turns.
        seed: Seed of the candidates.
        on_progress: Called with a line before each table and budget.

    Returns:
        Plain values for JSON: ``settings``, ``rows`` (table, budget, builder, nodes, median_us,
        min_us, ratio), ``expansion`` (the heap alone, without arrays in and out, beside a plain
        heap on ready-made lists) and ``candidates`` (what checking a table costs).

    Raises:
        ValueError: If repeats is below 1 or a budget is.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    rows: list[dict[str, object]] = []
    expansion: list[dict[str, object]] = []
    checks: list[dict[str, object]] = []
    for table, candidates in _tables(depth, width, seed).items():
        checks.append({"table": table, **_check_cost(candidates, repeats)})
        for budget in budgets:
            if on_progress is not None:
                on_progress(f"{table} table, {budget} rows")
            rows += [
                {"table": table, "budget": budget, **row}
                for row in _builders(candidates, budget, repeats)
            ]
            expansion.append(
                {"table": table, "budget": budget, **_expansion(candidates, budget, repeats)}
            )
    settings = {
        "budgets": list(budgets), "depth": depth, "width": width, "repeats": repeats, "seed": seed,
    }  # fmt: skip
    return {
        "settings": settings, "rows": rows, "expansion": expansion, "candidates": checks,
    }  # fmt: skip


def take_turns(work: dict[str, Work], repeats: int) -> dict[str, tuple[float, float]]:
    """Median and minimum microseconds of each kind of work, run in turns."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for name in work:
        work[name]()
    for _ in range(repeats):
        for name, call in work.items():
            start = perf_counter()
            call()
            times[name].append(perf_counter() - start)
    return {name: (1e6 * median(taken), 1e6 * min(taken)) for name, taken in times.items()}


def random_candidates(depth: int, width: int, parents: int, seed: int) -> Candidates:
    """The likeliest ``width`` of 1000 tokens under sharp random logits.

    Args:
        depth: Depths.
        width: Candidates a depth, at most 1000.
        parents: 1 for a marginal table, else ``width`` for a path-conditioned one.
        seed: Seed of the logits.

    Returns:
        The candidates; marginal rows come best first, conditioned rows in any order.
    """
    rng = np.random.default_rng(seed)
    logits = 3.0 * rng.standard_normal((depth, parents, _VOCABULARY))
    log_probs = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    best = np.sort(log_probs, axis=2)[:, :, : -width - 1 : -1]
    tokens = rng.permuted(np.tile(np.arange(_VOCABULARY), (depth, 1)), axis=1)[:, :width]
    return Candidates(tokens, best if parents == 1 else rng.permuted(best, axis=2))


def _tables(depth: int, width: int, seed: int) -> dict[str, Candidates]:
    return {
        "marginal": random_candidates(depth, width, 1, seed),
        "path-conditioned": random_candidates(depth, width, width, seed),
    }


def _builders(candidates: Candidates, budget: int, repeats: int) -> list[dict[str, object]]:
    lookup = _children_of(candidates)
    builders: dict[str, Callable[[], Tree]] = {
        "plain heap": lambda: plain_heap(_ROOT, candidates, budget),
        "best-first": lambda: BestFirst().build(_ROOT, candidates, budget),
        "best-first, callback": lambda: best_first_paths(_ROOT, lookup, budget, candidates.depth),
        "all children": lambda: AllChildren().build(_ROOT, candidates, budget),
        "chain": lambda: Chain().build(_ROOT, candidates, budget),
    }
    taken = take_turns(dict(builders), repeats)
    yardstick = taken["plain heap"][0]
    return [
        {
            "builder": name,
            "nodes": build().num_nodes,
            "median_us": taken[name][0],
            "min_us": taken[name][1],
            "ratio": taken[name][0] / yardstick,
        }
        for name, build in builders.items()
    ]


def _expansion(candidates: Candidates, budget: int, repeats: int) -> dict[str, object]:
    lists = ReadyLists.of(candidates)
    frontier = Frontier([candidates], None)
    taken = take_turns(
        {
            "ours": lambda: frontier.take(budget - 1),
            "plain": lambda: heap_over_lists(_ROOT, lists, budget),
        },
        repeats,
    )
    return {
        "best_first_us": taken["ours"][0],
        "best_first_min_us": taken["ours"][1],
        "plain_heap_us": taken["plain"][0],
        "plain_heap_min_us": taken["plain"][1],
        "ratio": taken["ours"][0] / taken["plain"][0],
    }


def _check_cost(candidates: Candidates, repeats: int) -> dict[str, object]:
    tokens, log_probs = candidates.tokens, candidates.log_probs
    taken = take_turns({"check": lambda: Candidates(tokens, log_probs)}, repeats)
    return {"median_us": taken["check"][0], "min_us": taken["check"][1]}


def _children_of(
    candidates: Candidates,
) -> Callable[[tuple[int, ...]], Iterator[tuple[int, float]]]:
    """The candidate table behind the callback interface, drawn from lazily."""
    lists = ReadyLists.of(candidates)
    places = [{token: i for i, token in enumerate(row)} for row in lists.tokens]

    def children(path: tuple[int, ...]) -> Iterator[tuple[int, float]]:
        level = len(path)
        rows = lists.log_probs[level]
        origin = places[level - 1][path[-1]] if path and len(rows) > 1 else 0
        names = map(lists.tokens[level].__getitem__, lists.order[level][origin])
        return zip(names, rows[origin], strict=True)

    return children
