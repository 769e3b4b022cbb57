"""Everything that ``--stats`` writes about the runs of one command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from jetflow_tree import AcceptanceStats

from jetflow_core.commands.running import Run
from jetflow_core.commands.summary import Setting, speed_up
from jetflow_core.decode import Round
from jetflow_core.engine import TreeOptions
from jetflow_core.lossless import Difference
from jetflow_core.protocols import Phases
from jetflow_core.reports.provenance import provenance
from jetflow_core.reports.tau import tau_figures
from jetflow_core.sampling import SamplingParams

FORMAT = 1
SECONDS_ARE = (
    "time spent in the decode loop: prefill, draft, tree, verify pass, walk and commit; not "
    "loading, measuring costs for budget auto, or printing"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptResult:
    """One prompt's runs."""

    text: str
    """The prompt as it was given."""
    run: Run
    plain: Run | None
    difference: Difference | None
    """First difference of the two runs; None also where nobody looked."""
    checked: bool
    """Whether their tokens were compared."""
    compared: bool
    """Whether their times were."""


def stats_payload(
    results: Sequence[PromptResult],
    *,
    setting: Setting,
    params: SamplingParams,
    options: TreeOptions,
) -> dict[str, Any]:
    """The report, ready for JSON."""
    runs = [result.run for result in results]
    return {
        "format": FORMAT,
        "provenance": provenance(setting.device),
        "setting": asdict(setting),
        "sampling": _sampling(params),
        "trees": {
            "budget": options.budget,
            "depth": options.depth,
            "builder": type(options.builder).__name__,
        },
        "figures": tau_figures([run.written for run in runs]),
        "acceptance": _acceptance(runs).to_dict(),
        "seconds_are": SECONDS_ARE,
        "speed": _speed(runs),
        "plain": _plain(results),
        "prompts": [_prompt(result) for result in results],
    }


def _sampling(params: SamplingParams) -> dict[str, Any]:
    known = {f.name: getattr(params, f.name) for f in fields(params)}
    del known["logits_processor"]
    known["logit_bias"] = {str(token): value for token, value in params.logit_bias.items()}
    return known


def _acceptance(runs: Sequence[Run]) -> AcceptanceStats:
    stats = AcceptanceStats()
    for run in runs:
        for result in run.rounds:
            stats.add(result.tree, result.accepted, emitted=len(result.picks))
    return stats


def _speed(runs: Sequence[Run]) -> dict[str, Any]:
    seconds = sum(run.seconds for run in runs)
    tokens = sum(len(run.tokens) for run in runs)
    rounds = [result for run in runs for result in run.rounds]
    phases = {f.name: sum(getattr(r.phases, f.name) for r in rounds) for f in fields(Phases)}
    return {
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "seconds": seconds,
        "phase_seconds": {"prefill": sum(run.prefill_seconds for run in runs)} | phases,
    }


def _plain(results: Sequence[PromptResult]) -> dict[str, Any] | None:
    pairs = [(result.run, result.plain) for result in results if result.plain is not None]
    if not pairs:
        return None
    ours, plain = _speed([run for run, _ in pairs]), _speed([other for _, other in pairs])
    faster = plain["tokens_per_second"] > 0
    ratio = ours["tokens_per_second"] / plain["tokens_per_second"] if faster else 0.0
    return {"speed": plain, "speed_up": ratio}


def _prompt(result: PromptResult) -> dict[str, Any]:
    run = result.run
    payload: dict[str, Any] = {
        "prompt": result.text,
        "prompt_tokens": list(run.prompt),
        "text": run.text,
        "tokens": list(run.tokens),
        "finish": run.finish,
        "figures": tau_figures([run.written]),
        "speed": _speed([run]),
        "rounds": [_round(r) for r in run.rounds],
    }
    if any(pick.logprob is not None for pick in run.picks):
        payload["logprobs"] = [
            {"token": p.token, "logprob": p.logprob, "top": p.top_logprobs} for p in run.picks
        ]
    if result.plain is not None:
        payload["plain"] = {
            "tokens": list(result.plain.tokens),
            "speed": _speed([result.plain]),
            "speed_up": speed_up(run, result.plain),
        }
    if result.checked:
        payload["identical_to_plain"] = result.difference is None
        payload["difference"] = asdict(result.difference) if result.difference else None
    return payload


def _round(result: Round) -> dict[str, Any]:
    return {
        "rows": result.tree.num_nodes,
        "drafted_depths": result.drafted_depths,
        "tree_depth": result.tree.max_depth,
        "accepted": len(result.accepted.nodes),
        "tokens": [pick.token for pick in result.picks],
        "expected_tokens": result.tree.expected_length(),
        "phase_seconds": asdict(result.phases),
    }
