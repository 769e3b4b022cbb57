"""The report of a run, whole or as far as it has come."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from jetflow_core.reports.provenance import provenance

from jetflow_serve.bench.configurations import PLAIN, Configuration
from jetflow_serve.bench.figures import combined
from jetflow_serve.bench.schema import FORMAT
from jetflow_serve.bench.settings import ServeBenchSettings

DEFINITIONS = {
    "budget": "rows of one verify pass, root included; 1 is plain decoding",
    "tau": (
        "tokens of a drafted round: 1 + accepted tokens / drafts, from the growth of the server's "
        "own counters vllm:spec_decode_*; rounds without a draft are not counted"
    ),
    "rows_per_round": "1 + drafted nodes / drafts, likewise",
    "batch": "requests in flight at a time; the next one is sent when one has been answered",
    "rate": "requests a second on average, sent at random moments (a Poisson process)",
    "tokens_per_second": "new tokens of all requests over the time from first to last",
    "ttft_ms": "from a request's start to the first piece of its answer",
    "itl_ms": (
        "between two pieces of a streamed answer; a round's accepted tokens come as one piece, so "
        "fewer and later pieces may be more tokens a second"
    ),
    "tpot_ms": "time of one request behind its first token, over the tokens that came in it",
    "e2el_ms": "from a request's start to its end",
    "ratio_to_plain": (
        "this configuration's median over plain decoding's under the same load of this run; "
        "tokens_per_second above 1 and times below 1 are gains"
    ),
    "texts_equal_to_plain": (
        "requests of the first repeat whose text is that of plain decoding, greedy only; in 16-bit "
        "types another batch may turn a near-tie"
    ),
    "order": (
        "configurations run one after the other, each server alone on the machine; repeats of its "
        "loads alternate"
    ),
}
_HONEST_TOKENS = 128


def make_report(
    settings: ServeBenchSettings,
    used: Mapping[str, Any],
    configurations: Sequence[Configuration],
    done: Mapping[str, Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """The report, ready for JSON.

    Args:
        settings: of the run.
        used: what the settings led to: models, versions, prompts.
        configurations: all that were asked for, in their order.
        done: what has been measured, by the configuration's name.
        failures: what could not be measured.
        origin: from ``where_from``.
    """
    told = [_configuration(each, done) for each in configurations if each.name in done]
    return {
        "format": FORMAT,
        "finished": len(told) == len(configurations),
        "settings": asdict(settings),
        "used": dict(used),
        "definitions": DEFINITIONS,
        "notes": _notes(settings, told),
        "configurations": told,
        "failures": list(failures),
        "provenance": dict(origin),
    }


def where_from() -> dict[str, Any]:
    """Versions, machine and command of this run; it asks git and the driver, so once is enough."""
    return {**provenance(), "gpus": _gpu_names()}


def _gpu_names() -> list[str]:
    """Names of the graphics cards, as their driver's own tool tells them; empty without one."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def _configuration(each: Configuration, done: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    mine = done[each.name]
    plain = {row["load"]: row for row in done.get(PLAIN, {}).get("rows", [])}
    return {
        "name": each.name,
        "kind": each.kind,
        "budget": each.budget,
        "extra_body": each.extra_body,
        "server": mine["server"],
        "rows": [_row(row, plain.get(row["load"])) for row in mine["rows"]],
    }


def _row(row: Mapping[str, Any], plain: Mapping[str, Any] | None) -> dict[str, Any]:
    own = combined(row["repeats"])
    return {
        **{name: row[name] for name in ("load", "kind", "value", "requests")},
        "figures": own,
        "ratio_to_plain": None if plain is None else _ratios(own, combined(plain["repeats"])),
        "texts_equal_to_plain": None if plain is None else _equal(row, plain),
        "repeats": [
            {name: value for name, value in one.items() if name != "texts"}
            for one in row["repeats"]
        ],
    }


def _ratios(own: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, float | None]:
    def ratio(a: float, b: float) -> float | None:
        return a / b if b else None

    return {
        "tokens_per_second": ratio(own["tokens_per_second"], plain["tokens_per_second"]),
        **{
            name: ratio(own[name]["median"], plain[name]["median"])
            for name in ("ttft_ms", "tpot_ms", "e2el_ms")
        },
    }


def _equal(row: Mapping[str, Any], plain: Mapping[str, Any]) -> int | None:
    if row["greedy"] is False:
        return None
    mine, others = row["repeats"][0]["texts"], plain["repeats"][0]["texts"]
    return sum(one == other for one, other in zip(mine, others, strict=True))


def _notes(settings: ServeBenchSettings, told: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = []
    if PLAIN not in settings.modes:
        notes.append("without plain decoding in the same run nothing is told in its ratio")
    if settings.url is not None:
        notes.append(
            "one running server answered all: plain decoding and smaller budgets were asked of it "
            "by each request, so they pay for what it keeps ready for its own drafts"
        )
    elif settings.one_server:
        notes.append(
            "trees of all budgets were asked of one server by each request, so small ones pay for "
            "what it keeps ready for the largest"
        )
    if settings.max_new_tokens > _HONEST_TOKENS:
        notes.append(
            f"{settings.max_new_tokens} new tokens: greedy texts of small targets loop when they "
            f"are long, and loops raise tau; {_HONEST_TOKENS} or fewer are safer"
        )
    shares = [
        one["cached_prompt_share"] or 0.0
        for each in told
        for row in each["rows"]
        for one in row["repeats"]
    ]
    if any(shares):
        notes.append(
            f"up to {max(shares):.0%} of a load's prompt tokens came from the server's prefix "
            "cache: times to the first token are flattered"
        )
    return notes
