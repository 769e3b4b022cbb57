"""Times tree attention on a GPU: ``python -m jetflow_kernels.attention.bench --out result.json``.

One process, one card. Every case is checked against the float64 reference first, with every
backend. A CUDA graph of as many calls as a model has layers, each with pools of its own, is
replayed, so that keys and values come from memory and not from the L2 cache; pages are permuted at
random. Backends take turns, replay by replay, so that they meet the same clocks. The report holds
the median and the spread of one call in microseconds, beside the floor of the given card.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels.attention.backend import Backend
from jetflow_kernels.attention.op import tree_attention
from jetflow_kernels.reference import tree_attention_reference

WARM_UPS = 5
REPLAYS = 50
TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
TIMED: tuple[Backend, ...] = ("triton", "cuda")


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


def check(arguments: dict[str, Any], backend: Backend, want: Tensor) -> float:
    """The largest error of a backend against the reference's output ``want``.

    Raises:
        RuntimeError: the error is past the tolerance of the type, or not a number.
    """
    got = tree_attention(**arguments, backend=backend).double()
    error = float((got - want.double()).abs().max())
    if not error <= TOLERANCE[arguments["q"].dtype]:
        raise RuntimeError(f"tree_attention ({backend}) is off by {error}; nothing was timed")
    return error


def capture(layers: list[dict[str, Any]], backend: Backend) -> Callable[[], None]:
    """One call of every layer as a graph."""
    outs = [torch.empty_like(arguments["q"]) for arguments in layers]
    for arguments, out in zip(layers, outs, strict=True):
        tree_attention(**arguments, out=out, backend=backend)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for arguments, out in zip(layers, outs, strict=True):
            tree_attention(**arguments, out=out, backend=backend)
    return graph.replay


def time_us(replays: list[Callable[[], None]], count: int) -> list[list[float]]:
    """Microseconds of each of ``count`` rounds of all replays in turn, by events."""
    rounds = []
    for _ in range(count):
        pairs = []
        for replay in replays:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            replay()
            end.record()
            pairs.append((start, end))
        rounds.append(pairs)
    torch.cuda.synchronize()
    times = [[start.elapsed_time(end) * 1e3 for start, end in pairs] for pairs in rounds]
    return [list(one) for one in zip(*times, strict=True)]


def run(
    case: Case, dtype: torch.dtype, bandwidth: float, flops: float, backends: list[Backend]
) -> list[dict[str, object]]:
    """Checks and times one case: a result for each backend."""
    layers = make_layers(case, dtype)
    want = tree_attention_reference(**layers[0])
    errors = [check(layers[0], backend, want) for backend in backends]
    replays = [capture(layers, backend) for backend in backends]
    time_us(replays, WARM_UPS)
    floor = case.floor_us(bandwidth, flops)
    results: list[dict[str, object]] = []
    for backend, error, times in zip(backends, errors, time_us(replays, REPLAYS), strict=True):
        each = [time / case.layers for time in times]
        median, cuts = statistics.median(each), statistics.quantiles(each, n=10)
        results.append(
            {
                **asdict(case),
                "backend": backend,
                "dtype": str(dtype).removeprefix("torch."),
                "error": error,
                "median_us": median,
                "p10_us": cuts[0],
                "p90_us": cuts[-1],
                "floor_us": floor,
                "share_of_floor": floor / median,
            }
        )
    return results


def main(argv: list[str] | None = None) -> None:
    """Runs the grid and writes one JSON file.

    Raises:
        SystemExit: wrong arguments, or no CUDA device.
    """
    parser = argparse.ArgumentParser(prog="jetflow_kernels.attention.bench", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 64, 128, 256])
    parser.add_argument("--prefix", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--requests", type=int, nargs="+", default=[1])
    parser.add_argument("--page", type=int, nargs="+", default=[128])
    parser.add_argument("--backends", choices=TIMED, nargs="+", default=["triton"])
    parser.add_argument("--layers", type=int, default=36, help="pools that take turns")
    parser.add_argument("--bandwidth", type=float, default=4.26e12, help="bytes/s for the floor")
    parser.add_argument("--flops", type=float, default=7.9e14, help="operations/s for the floor")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device; there is none here")
    torch.manual_seed(0)
    results = []
    grid = product(options.requests, options.prefix, options.rows, options.page)
    for requests, prefix, rows, page in grid:
        case = Case(rows=rows, prefix=prefix, requests=requests, page=page, layers=options.layers)
        found = run(case, torch.bfloat16, options.bandwidth, options.flops, options.backends)
        for result in found:
            print(json.dumps(result), flush=True)
        results += found
        torch.cuda.empty_cache()
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": metadata.version("triton"),
        "results": results,
    }
    _write(options.out, json.dumps(report, indent=1))


def _write(path: Path, text: str) -> None:
    """Writes the whole file or none of it."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


if __name__ == "__main__":
    main()
