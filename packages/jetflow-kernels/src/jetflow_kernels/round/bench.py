"""Times the steps of a round on a GPU: ``python -m jetflow_kernels.round.bench --out FILE``.

Every step is held against its reference first. Then a CUDA graph of several calls, on inputs of
their own where those are large, is replayed; ours and torch's take turns. Beside steps for which
torch has nothing stands the reference on the host, by the clock. The last entry is all steps of a
round captured in one graph.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch

from jetflow_kernels import timing
from jetflow_kernels.round import contests, contests_target
from jetflow_kernels.round.contests import Call, Contest, Sizes
from jetflow_kernels.round.whole import Round

Result = dict[str, object]
_HOST_RUNS = 3


def all_contests(sizes: Sizes, device: str) -> list[Callable[[], list[Contest]]]:
    """Makers of all contests, so that the inputs of one are gone before the next."""
    found: list[Callable[[], list[Contest]]] = [
        lambda: [contests.top_tokens(sizes, device)],
        lambda: contests.ending(sizes, device),
    ]
    for by_parent in (False, True):
        found += [
            partial(contests.trees, sizes, rows, device, by_parent=by_parent) for rows in sizes.rows
        ]
    found += [
        lambda make=make, rows=rows: [make(sizes, rows, device)]  # type: ignore[misc]
        for make, sizes_of in (
            (contests.picks, sizes.rows[1:]),
            (contests_target.sampled, sizes.rows[-1:]),
            (contests_target.written, sizes.rows[-1:]),
            (contests.words, sizes.rows[-1:]),
            (contests.slots, sizes.rows[-1:]),
        )
        for rows in sizes_of
    ]
    return found


def measure(contest: Contest) -> Result:
    """Checks one step, then times it in turns with its peers.

    Raises:
        RuntimeError: it differs from its reference.
    """
    contest.check()
    names = list(contest.peers)
    replays = [timing.capture(contest.ours), *(timing.capture(contest.peers[n]) for n in names)]
    ours, *theirs = timing.in_turns(replays, len(contest.ours))
    peers: dict[str, object] = {
        name: {**asdict(one), "ratio": one.median_us / ours.median_us}
        for name, one in zip(names, theirs, strict=True)
    }
    if contest.host is not None:
        took = host_us(contest.host)
        peers["reference on the host"] = {"median_us": took, "ratio": took / ours.median_us}
    return {
        "step": contest.name,
        "size": contest.size,
        **asdict(ours),
        "goal_us": contest.goal_us,
        "peers": peers,
    }


def host_us(call: Call) -> float:
    """Median microseconds of a call on the host, by the clock."""
    times = []
    for _ in range(_HOST_RUNS):
        start = time.perf_counter()
        call()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


def measure_round(sizes: Sizes) -> Result:
    """All steps in one graph, checked after a replay, then timed.

    Raises:
        RuntimeError: a step differs from its reference.
    """
    whole = Round.random(sizes, "cuda")
    whole.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = whole.run()
    graph.replay()
    torch.cuda.synchronize()
    accepted = whole.check(results)
    (ours,) = timing.in_turns([graph.replay], 1)
    size = f"{max(sizes.rows)} rows, {sizes.layers} layers, {accepted} accepted"
    return {
        "step": "a round's steps in one graph",
        "size": size,
        **asdict(ours),
        "goal_us": None,
        "peers": {},
    }


def run(sizes: Sizes, report: Callable[[Result], None]) -> None:
    """Measures everything and tells each result, failures included, as soon as it exists.

    Args:
        sizes: what to time.
        report: gets ``step``, ``size`` and the times, or ``failed`` instead of them.
    """
    torch.manual_seed(0)
    with torch.no_grad():
        for make in all_contests(sizes, "cuda"):
            for contest in make():
                _told(partial(measure, contest), contest.name, report)
            torch.cuda.empty_cache()
        _told(lambda: measure_round(sizes), "a round's steps in one graph", report)


def _told(take: Callable[[], Result], name: str, report: Callable[[Result], None]) -> None:
    try:
        result = take()
    except (RuntimeError, ValueError) as error:
        result = {"step": name, "failed": f"{type(error).__name__}: {error}"[:2000]}
    report(result)


def line(result: Result) -> str:
    """One result for people."""
    if "failed" in result:
        return f"{result['step']:<26} FAILED: {result['failed']}"
    goal = "" if result["goal_us"] is None else f"  goal {result['goal_us']:g}"
    peers = result["peers"]
    assert isinstance(peers, dict)
    beside = "".join(f"  {name} x{peer['ratio']:.1f}" for name, peer in peers.items())
    return (
        f"{result['step']:<26} {result['size']:<46} {result['median_us']:8.2f} us "
        f"({result['p10_us']:.2f} to {result['p90_us']:.2f}){goal}{beside}"
    )


def main(argv: list[str] | None = None) -> None:
    """Measures and writes one JSON file, anew after every result.

    Raises:
        SystemExit: wrong arguments, no CUDA device, or a step that differs from its reference.
    """
    parser = argparse.ArgumentParser(prog="jetflow_kernels.round.bench", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        parser.error("needs a CUDA device; there is none here")
    results: list[Result] = []
    environment = timing.environment()

    def report(result: Result) -> None:
        results.append(result)
        print(line(result), flush=True)
        timing.write_json(options.out, {**environment, "results": results})

    run(Sizes(), report)
    failed = sum("failed" in result for result in results)
    if failed:
        raise SystemExit(f"{failed} of {len(results)} steps failed")


if __name__ == "__main__":
    main()
