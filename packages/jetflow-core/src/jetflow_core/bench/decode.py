"""``jetflow bench decode``: tau and speed of one head's chain and trees beside plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from jetflow_core.bench.checks import check_at_least, check_device, check_dtype
from jetflow_core.bench.configurations import AUTO, KINDS, PLAIN, Configuration, configurations
from jetflow_core.bench.measured import Sample
from jetflow_core.bench.partial import Partial
from jetflow_core.bench.progress import bar
from jetflow_core.bench.prompts import ALL_SETS, PromptSet, load_sets
from jetflow_core.bench.schedule import Plan, run_sets, units, warm_up
from jetflow_core.bench.schema import FORMAT, check_report
from jetflow_core.bench.summary import BREAK_EVEN, INTERVAL, SPEED, summarise_set
from jetflow_core.defaults import default_head, is_default_target
from jetflow_core.embedded import EMBEDDED_NAME
from jetflow_core.engine import Engine, load
from jetflow_core.head.checkpoint import read_config
from jetflow_core.limits import MAX_SLOTS
from jetflow_core.reports.files import check_output, write_report
from jetflow_core.reports.loops import LOOP_DEFINITION
from jetflow_core.reports.provenance import provenance
from jetflow_core.reports.tau import TAU_FORMULA
from jetflow_core.sampling import SamplingParams

_HONEST_TOKENS = 128
_NO_HEAD = "chain and trees need --head: this target has no default head"
_TAU_ONLY_BATCHES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodeSettings:
    """What is measured.

    Raises:
        ValueError: a value is out of range; the message names it.
    """

    prompts: tuple[str, ...] = ("builtin",)
    limit: int | None = None
    seed: int = 0
    target: str | None = None
    heads: tuple[str, ...] = ()
    """Folders; none: the default head of the target."""
    device: str = "cpu"
    dtype: str | None = None
    """Name of a torch type; None: the fastest on the device."""
    kinds: tuple[str, ...] = KINDS
    budgets: tuple[int, ...] = (1, 16, 64, 256)
    depth: int | None = None
    temperature: float = 0.0
    max_new_tokens: int = 128
    repeats: int = 3
    slots: int = 1
    threads: int | None = None
    tau_only: bool = False
    """No timing: one run of each configuration, many prompts in flight."""

    def __post_init__(self) -> None:
        check_dtype(self.dtype)
        check_device(self.device)
        SamplingParams(max_new_tokens=self.max_new_tokens, temperature=self.temperature)
        for name in ("depth", "max_new_tokens", "repeats", "slots", "threads"):
            check_at_least(name, getattr(self, name), 1)
        if self.slots > MAX_SLOTS:
            raise ValueError(f"slots {self.slots} is out of range: 1 to {MAX_SLOTS}")
        if self.seed < 0:
            raise ValueError(f"seed {self.seed} is out of range: at least 0")
        if self.tau_only and self.kinds == (AUTO,):
            raise ValueError("auto follows measured time, so it has no tau apart from timed runs")


def run_decode(settings: DecodeSettings, out: str | Path | None = None) -> dict[str, Any]:
    """The report of all runs, written to ``out`` if given.

    An interrupted run leaves OUT.partial beside the report; the same settings go on from there.

    Raises:
        ValueError: something cannot be loaded, read or written; named, before any run.
    """
    file = None if out is None else check_output(out)
    sets = load_sets(settings.prompts, limit=settings.limit, seed=settings.seed)
    partial = Partial(file, _identity(settings, sets))
    _check_heads(settings)
    plan = _plan(settings)
    _check_lengths(plan.engines[0], sets)
    timed = not settings.tau_only
    setup = warm_up(plan, sets[0].prompts[0].text) if timed else {}
    total = sum(len(units(one, plan.unit)) for one in sets)
    with bar("decoding", total) as advance:
        samples = run_sets(plan, sets, partial, advance)
    report = _report(settings, plan, _summaries(plan, sets, samples, timed=timed), setup)
    check_report(report)
    if file is not None:
        write_report(file, report)
        partial.remove()
    return report


def _check_heads(settings: DecodeSettings) -> None:
    """What is wrong with the choice of heads shows before any weight is read."""
    heads = [Path(head) for head in settings.heads]
    if not heads and is_default_target(settings.target):
        heads = [default_head()]
    if not heads and set(settings.kinds) != {PLAIN}:
        raise ValueError(_NO_HEAD)
    for head in heads:
        deepest = read_config(head)[0].max_depth
        if settings.depth is not None and settings.depth > deepest:
            raise ValueError(
                f"depth {settings.depth} is out of range: the head {head.name} goes to {deepest}"
            )


def _check_lengths(engine: Engine, sets: Sequence[PromptSet]) -> None:
    """A prompt too long for the target shows before the first of them is decoded."""
    context = engine.target.context_length
    for one in sets:
        for prompt in one.prompts:
            length = len(engine.encode(prompt.text))
            if length >= context:
                raise ValueError(
                    f"prompt {prompt.name!r} of {one.name} has {length} tokens; the target's "
                    f"context of {context} leaves room for prompts of at most {context - 1}"
                )


def _identity(settings: DecodeSettings, sets: Sequence[PromptSet]) -> dict[str, Any]:
    """What must be equal for a run to go on with what another one finished."""
    return {
        "format": FORMAT,
        "torch": torch.__version__,
        **asdict(settings),
        "texts": [one.fingerprint for one in sets],
    }


def _plan(settings: DecodeSettings) -> Plan:
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    dtype: torch.dtype | None = getattr(torch, settings.dtype) if settings.dtype else None
    engines = tuple(
        load(settings.target, head, device=settings.device, dtype=dtype)
        for head in settings.heads or (None,)
    )
    batch = _TAU_ONLY_BATCHES if settings.tau_only else 1
    return Plan(
        engines=engines,
        found=tuple(_found(settings, engines)),
        depth=settings.depth,
        slots=settings.slots,
        unit=settings.slots * batch,
        repeats=1 if settings.tau_only else settings.repeats,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
    )


def _found(settings: DecodeSettings, engines: Sequence[Engine]) -> list[Configuration]:
    left_out = (AUTO,) if settings.tau_only else ()
    kinds = [kind for kind in settings.kinds if kind not in left_out]
    headed = [engine for engine in engines if engine.head is not None]
    if set(kinds) != {PLAIN} and not headed:
        raise ValueError(_NO_HEAD)
    names = [_head_name(engine) for engine in headed]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"two heads are called {name!r}; rename one of the folders")
    depths = [min(settings.depth or each.max_depth, each.max_depth) for each in headed]
    return configurations(kinds, settings.budgets, depths, names)


def _head_name(engine: Engine) -> str:
    return engine.head.path.name if engine.head else "none"


def _summaries(
    plan: Plan,
    sets: Sequence[PromptSet],
    samples: dict[str, dict[str, list[Sample]]],
    *,
    timed: bool,
) -> list[dict[str, Any]]:
    found = [
        {
            "name": one.name,
            "prompts": len(one.prompts),
            "fingerprint": one.fingerprint,
            "rows": summarise_set(plan.found, samples[one.name], timed=timed),
        }
        for one in sets
    ]
    if len(sets) > 1:
        pooled = {
            each.name: [sample for mine in samples.values() for sample in mine[each.name]]
            for each in plan.found
        }
        found.append({
            "name": ALL_SETS,
            "prompts": sum(len(one.prompts) for one in sets),
            "fingerprint": None,
            "rows": summarise_set(plan.found, pooled, timed=timed),
        })  # fmt: skip
    return found


def _report(
    settings: DecodeSettings, plan: Plan, sets: list[dict[str, Any]], setup: dict[str, float]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "mode": "tau-only" if settings.tau_only else "timed",
        "settings": asdict(settings),
        "used": _used(settings, plan, setup),
        "definitions": {
            "tau": TAU_FORMULA,
            "tau_interval": INTERVAL,
            "loop": LOOP_DEFINITION,
            "budget": "rows of one verify pass, root included; 1 is plain decoding",
            "speed": SPEED,
            "break_even_tau": BREAK_EVEN,
        },
        "notes": _notes(settings, plan),
        "sets": sets,
        "provenance": provenance(settings.device),
    }


def _used(settings: DecodeSettings, plan: Plan, setup: dict[str, float]) -> dict[str, Any]:
    target = plan.engines[0].target
    return {
        "target": EMBEDDED_NAME if settings.target is None else settings.target,
        "dtype": str(target.dtype).removeprefix("torch."),
        "device": str(target.device),
        "threads": torch.get_num_threads(),
        "slots": plan.slots,
        "prompts_a_unit": plan.unit,
        "repeats": plan.repeats,
        "heads": [
            {
                "name": _head_name(engine),
                "path": str(engine.head.path),
                "depth": engine.max_depth,
                "path_rank": engine.head.config.path_rank,
                "candidates": engine.head.config.candidates,
            }
            for engine in plan.engines
            if engine.head is not None
        ],
        "warm_up_setup_seconds": setup,
    }


def _notes(settings: DecodeSettings, plan: Plan) -> list[str]:
    notes = []
    if settings.max_new_tokens > _HONEST_TOKENS:
        notes.append(
            f"{settings.max_new_tokens} new tokens: long greedy texts loop, and loops raise tau; "
            f"compare heads at {_HONEST_TOKENS} or fewer"
        )
    if plan.engines[0].target.dtype in (torch.bfloat16, torch.float16):
        notes.append(
            "16-bit types: rounding may turn a near-tie, so texts can differ from plain decoding's"
        )
    return notes
