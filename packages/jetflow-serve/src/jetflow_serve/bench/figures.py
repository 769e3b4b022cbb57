"""From what the client and the counters say of one load to the figures that are told."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from statistics import median
from typing import Any

from jetflow_serve.bench.client import LATENCIES, Measured
from jetflow_serve.bench.configurations import AUTO, PLAIN, TREE, Configuration
from jetflow_serve.bench.loads import Load

DRAFTS = "vllm:spec_decode_num_drafts_total"
NODES = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_DEPTH = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_CACHED = "vllm:prefix_cache_hits_total"
_LOOKED_UP = "vllm:prefix_cache_queries_total"


_TOLD = (
    "completed", "generated_texts", "output_throughput", "request_throughput", "duration",
    "total_input_tokens", "total_output_tokens",
    *(f"{which}_{name}_ms" for which in ("median", "p99") for name in LATENCIES),
)  # fmt: skip


class NotMeasured(Exception):
    """A load was run but is no measurement of its configuration; the text says why."""


def figures(configuration: Configuration, load: Load, measured: Measured) -> dict[str, Any]:
    """The figures of one run under one load, ready for JSON; times in milliseconds.

    Raises:
        NotMeasured: the client told less than is needed, requests failed, nothing was drafted
            where trees were asked for, or something was drafted in plain decoding.
    """
    result, counters = measured.result, measured.counters
    _check_answers(load, result)
    rounds, nodes, accepted = (counters.get(name, 0.0) for name in (DRAFTS, NODES, ACCEPTED))
    _check_drafts(configuration, rounds, nodes)
    return {
        "tokens_per_second": result["output_throughput"],
        "requests_per_second": result["request_throughput"],
        "seconds": result["duration"],
        "prompt_tokens": result["total_input_tokens"],
        "new_tokens": result["total_output_tokens"],
        **{
            f"{name}_ms": {
                "median": result[f"median_{name}_ms"],
                "p99": result[f"p99_{name}_ms"],
            }
            for name in LATENCIES
        },
        "tau": 1.0 + (accepted / rounds if rounds else 0.0),
        "rounds": rounds,
        "rows_per_round": 1.0 + (nodes / rounds if rounds else 0.0),
        "accepted_by_depth": _by_depth(counters),
        "cached_prompt_share": _share(counters.get(_CACHED, 0.0), counters.get(_LOOKED_UP, 0.0)),
        "counters": dict(counters),
        "texts": [
            hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
            for text in result["generated_texts"]
        ],
    }


def _check_answers(load: Load, result: Mapping[str, Any]) -> None:
    for name in _TOLD:
        if name not in result:
            raise NotMeasured(f"vLLM's client told no {name}: is it another version?")
    failed = [error for error in result.get("errors", []) if error]
    if result["completed"] == load.requests and not result.get("failed"):
        return
    why = " ".join(str(failed[0]).split())[-300:] if failed else "without a reason"
    raise NotMeasured(
        f"{result['completed']} of {load.requests} requests were answered under {load.name}; "
        f"the first failure: {why}"
    )


def _check_drafts(configuration: Configuration, rounds: float, nodes: float) -> None:
    if configuration.kind == PLAIN:
        if rounds:
            raise NotMeasured(
                f"the server drafted {nodes:g} tokens for requests that were to be decoded plainly"
            )
        return
    if not rounds and configuration.kind != AUTO:
        raise NotMeasured("the server drafted nothing, so it is no server with a head of ours")
    budget = configuration.budget
    if configuration.kind == TREE and budget is not None and nodes > rounds * (budget - 1):
        raise NotMeasured(
            f"the server drafted {nodes / rounds:.1f} nodes a round for budget {budget}: it does "
            "not read the budget of a request"
        )


def _by_depth(counters: Mapping[str, float]) -> list[float]:
    found = {
        int(name.partition("position=")[2].rstrip("}")) + 1: value
        for name, value in counters.items()
        if name.startswith(BY_DEPTH)
    }
    return [found.get(depth, 0.0) for depth in range(1, max(found, default=0) + 1)]


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def combined(repeats: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians over repeats of the same load; counts are of all of them together."""
    rounds = sum(one["rounds"] for one in repeats)
    kept = sum((one["tau"] - 1.0) * one["rounds"] for one in repeats)
    rows = sum((one["rows_per_round"] - 1.0) * one["rounds"] for one in repeats)
    return {
        "tokens_per_second": _median(repeats, "tokens_per_second"),
        "requests_per_second": _median(repeats, "requests_per_second"),
        **{
            f"{name}_ms": {
                which: median(one[f"{name}_ms"][which] for one in repeats)
                for which in ("median", "p99")
            }
            for name in LATENCIES
        },
        "tau": 1.0 + (kept / rounds if rounds else 0.0),
        "rows_per_round": 1.0 + (rows / rounds if rounds else 0.0),
        "rounds": rounds,
    }


def _median(repeats: list[dict[str, Any]], name: str) -> float:
    return float(median(one[name] for one in repeats))
