"""Times tree attention on a GPU: ``python -m jetflow_kernels.attention.bench --out result.json``.

One process, one card. Every case is checked against the float64 reference first, with every
version and every peer; whoever is wrong or fails is named and not timed. A CUDA graph of as many
calls as a model has layers, each with pools of its own, is replayed, so that keys and values come
from memory and not from the L2 cache; pages are permuted at random. All take turns, replay by
replay, so that they meet the same clocks. The report holds the median and the spread of one call
in microseconds, beside the floor of the given card.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels import timing
from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention import peers
from jetflow_kernels.attention.backend import Backend
from jetflow_kernels.attention.op import tree_attention
from jetflow_kernels.reference import tree_attention_reference

TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
BANDWIDTH, FLOPS = 4.26e12, 7.9e14
"""Of an H200, measured: bytes and bf16 operations a second."""
TIMED: tuple[Backend, ...] = ("triton", "cuda", "flash")
SWIFT = "cuda-swift"
"""The CUDA version's kernels with ``swift``, which no call chooses; not run on a card yet."""
OURS = (*TIMED, SWIFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One point of the grid; the defaults are the heads of Qwen3-8B."""

    rows: int
    prefix: int
    requests: int = 1
    page: int = 128
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    layers: int = 36

    def floor_us(self, bandwidth: float, flops: float) -> float:
        """The larger of the time to read the keys and values and the time to multiply.

        Args:
            bandwidth: bytes a second.
            flops: operations a second.
        """
        length = self.prefix + self.rows
        read = 4 * length * self.kv_heads * self.dim + 4 * self.rows * self.heads * self.dim
        work = 4 * self.rows * self.heads * self.dim * length
        return self.requests * max(read / bandwidth, work / flops) * 1e6


def make_layers(case: Case, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Arguments of every layer: pools of its own behind one table of permuted pages."""
    pages = -(-(case.prefix + case.rows) // case.page)
    order = torch.randperm(case.requests * pages, device="cuda", dtype=torch.int64)
    shape = (case.requests * pages, case.page, case.kv_heads, case.dim)
    total = case.requests * case.rows
    shared = {
        "page_table": order.view(case.requests, pages).int(),
        "cu_nodes": torch.arange(0, total + 1, case.rows, device="cuda", dtype=torch.int32),
        "prefix_len": torch.full((case.requests,), case.prefix, device="cuda", dtype=torch.int32),
        "ancestors": _random_trees(case).cuda(),
    }
    return [
        {
            "q": torch.randn(total, case.heads, case.dim, device="cuda", dtype=dtype),
            "k_pool": torch.randn(shape, device="cuda", dtype=dtype),
            "v_pool": torch.randn(shape, device="cuda", dtype=dtype),
            **shared,
        }
        for _ in range(case.layers)
    ]


def _random_trees(case: Case) -> Tensor:
    words = torch.zeros(case.requests * case.rows, -(-case.rows // 64), dtype=torch.int64)
    for request in range(case.requests):
        tree = words[request * case.rows : (request + 1) * case.rows]
        for row in range(case.rows):
            if row:
                tree[row] |= tree[int(torch.randint(row, (1,)))]
            bit = row % 64
            tree[row, row // 64] |= (1 << bit) if bit < 63 else -(1 << 63)
    return words


Entrant = Callable[[dict[str, Any]], Callable[[], Tensor]]
"""Takes the arguments of a layer and returns what computes its output, [T, Hq, D]."""


def version(backend: Backend) -> Entrant:
    """One of our versions."""

    def entrant(arguments: dict[str, Any]) -> Callable[[], Tensor]:
        out = torch.empty_like(arguments["q"])
        return lambda: tree_attention(**arguments, out=out, backend=backend)

    return entrant


def swift(arguments: dict[str, Any]) -> Callable[[], Tensor]:
    """An entrant: the CUDA version's swift kernel."""
    # Triton, which this imports, is an extra.
    from jetflow_kernels.attention.k2.launch import launch

    given = TreeAttentionArguments(**arguments)
    out = torch.empty_like(given.q)

    def call() -> Tensor:
        launch(given, out=out, lse=None, scale=out.shape[-1] ** -0.5, swift=True)
        return out

    return call


def check(call: Callable[[], Tensor], want: Tensor) -> float:
    """The largest error of a call against the reference's output ``want``.

    Raises:
        RuntimeError: the error is past the tolerance of the type, or not a number.
    """
    error = float((call().double() - want.double()).abs().max())
    if not error <= TOLERANCE[want.dtype]:
        raise RuntimeError(f"it is off by {error}")
    return error


def run(
    case: Case,
    dtype: torch.dtype,
    bandwidth: float,
    flops: float,
    entrants: dict[str, Entrant],
) -> list[dict[str, object]]:
    """Checks and times one case: a result for each entrant, ``failed`` instead of times if so."""
    layers = make_layers(case, dtype)
    want = tree_attention_reference(**layers[0])
    floor = case.floor_us(bandwidth, flops)
    told = {**asdict(case), "dtype": str(dtype).removeprefix("torch."), "floor_us": floor}
    results: list[dict[str, object]] = []
    timed: list[tuple[dict[str, object], Callable[[], None]]] = []
    for name, entrant in entrants.items():
        result: dict[str, object] = {**told, "backend": name}
        results.append(result)
        # A peer may fail in any way of its own, which is a result as well.
        try:
            calls = [entrant(arguments) for arguments in layers]
            result["error"] = check(calls[0], want)
            timed.append((result, timing.capture(calls)))
        except Exception as error:
            result["failed"] = f"{type(error).__name__}: {error}"[:1000]
            torch.cuda.synchronize()
    spreads = timing.in_turns([replay for _, replay in timed], case.layers)
    for (result, _), spread in zip(timed, spreads, strict=True):
        result |= asdict(spread) | {"share_of_floor": floor / spread.median_us}
    return results


def compare(results: Sequence[dict[str, Any]]) -> None:
    """Adds to each of our results how many times as long every peer took in the same case."""
    took = {(*_case(r), r["backend"]): r["median_us"] for r in results if "median_us" in r}
    for result in results:
        if result["backend"] in OURS and "median_us" in result:
            result["ratios"] = {
                key[-1]: time / result["median_us"]
                for key, time in took.items()
                if key[:-1] == _case(result) and key[-1] not in OURS
            }


def _case(result: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(result[name] for name in ("requests", "prefix", "rows", "page", "layers"))


def line(result: dict[str, Any]) -> str:
    """One result for people."""
    start = (
        f"B {result['requests']:<3} P {result['prefix']:<6} N {result['rows']:<4} "
        f"page {result['page']:<4} {result['backend']:<12} "
    )
    if "failed" in result:
        return f"{start}FAILED: {result['failed']}"
    beside = "".join(f"  {name} x{ratio:.1f}" for name, ratio in result.get("ratios", {}).items())
    return (
        f"{start}{result['median_us']:9.2f} us ({result['p10_us']:.2f} to {result['p90_us']:.2f})"
        f"  {100 * result['share_of_floor']:3.0f} % of the floor's speed{beside}"
    )


def measure(
    cases: Sequence[Case],
    entrants: dict[str, Entrant],
    report: Callable[[dict[str, Any]], None],
    *,
    bandwidth: float = BANDWIDTH,
    flops: float = FLOPS,
) -> None:
    """Runs cases and tells every result as soon as it exists.

    Args:
        cases: what to time.
        entrants: who takes part, by name.
        report: gets each result.
        bandwidth: bytes a second, for the floor.
        flops: operations a second, for the floor.
    """
    torch.manual_seed(0)
    with torch.no_grad():
        for case in cases:
            results = run(case, torch.bfloat16, bandwidth, flops, entrants)
            compare(results)
            for result in results:
                report(result)
            torch.cuda.empty_cache()


def choose(backends: Sequence[Backend], names: Sequence[str]) -> dict[str, Entrant]:
    """Our versions and the peers that can be imported, by name."""
    found: dict[str, Entrant] = {backend: version(backend) for backend in backends}
    return found | {name: peers.PEERS[name].enter for name in names if peers.PEERS[name].version()}


def main(argv: list[str] | None = None) -> None:
    """Runs the grid and writes one JSON file, anew after every result.

    Raises:
        SystemExit: wrong arguments, no CUDA device, or one of our versions failed.
    """
    parser = argparse.ArgumentParser(prog="jetflow_kernels.attention.bench", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 128, 256])
    parser.add_argument("--prefix", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--requests", type=int, nargs="+", default=[1])
    parser.add_argument("--page", type=int, nargs="+", default=[128])
    parser.add_argument("--backends", choices=TIMED, nargs="+", default=["triton"])
    parser.add_argument("--swift", action="store_true", help=f"also {SWIFT}, which no call chooses")
    parser.add_argument("--peers", choices=list(peers.PEERS), nargs="*", default=[])
    parser.add_argument("--layers", type=int, default=36, help="pools that take turns")
    parser.add_argument("--bandwidth", type=float, default=BANDWIDTH, help="bytes/s for the floor")
    parser.add_argument("--flops", type=float, default=FLOPS, help="operations/s for the floor")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device; there is none here")
    grid = product(options.requests, options.prefix, options.rows, options.page)
    cases = [
        Case(rows=rows, prefix=prefix, requests=requests, page=page, layers=options.layers)
        for requests, prefix, rows, page in grid
    ]
    results: list[dict[str, Any]] = []
    head = {**timing.environment(), "peers": peers.versions()}

    def report(result: dict[str, Any]) -> None:
        results.append(result)
        print(line(result), flush=True)
        timing.write_json(options.out, {**head, "results": results})

    entrants = choose(options.backends, options.peers)
    if options.swift:
        entrants[SWIFT] = swift
    measure(cases, entrants, report, bandwidth=options.bandwidth, flops=options.flops)
    failed = sum("failed" in r and r["backend"] in OURS for r in results)
    if failed:
        raise SystemExit(f"{failed} results of our own failed")


if __name__ == "__main__":
    main()
