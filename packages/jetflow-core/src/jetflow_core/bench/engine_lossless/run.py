"""``jetflow bench engine-lossless``: all parts, kept as they finish, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from jetflow_core.bench.checks import check_round
from jetflow_core.bench.engine.summary import told_budget
from jetflow_core.bench.engine_lossless.place import Case, Place
from jetflow_core.bench.engine_lossless.settings import (
    EXACT,
    PARTS,
    ROUNDING,
    SAMPLING,
    EngineLosslessSettings,
)
from jetflow_core.bench.engine_lossless.tasks import run_tasks, tasks_of
from jetflow_core.bench.partial import Partial
from jetflow_core.bench.plain_side import plain_answers
from jetflow_core.bench.progress import bar
from jetflow_core.bench.prompts import load_sets
from jetflow_core.defaults import default_head, default_target, is_default_target
from jetflow_core.head.checkpoint import read_config
from jetflow_core.loading import load_config, load_tokenizer
from jetflow_core.reports.files import check_output, write_report
from jetflow_core.reports.provenance import provenance
from jetflow_core.stacks import StackShape

FORMAT = "jetflow-bench-engine-lossless/1"
_PLAIN_SIDE = "plain side"
DEFINITIONS = {
    "exact": "float32 without TF32, greedy. Requests decoded together, with so few pages that they "
    "take them from each other, and each alone on the same runner; both token for token against "
    "transformers' own generate, which ran in other processes, and against each other.",
    "admissions, completions, preemptions": "requests that came, ended, or lost their pages while "
    "others decoded; a cell that lacks one of them has not passed.",
    "auto": "chooses by made-up costs under which rows cost little, the same on every machine.",
    "rounding": "bfloat16, greedy. Trees, and chains of as many rows, against plain rounds of the "
    "same engine with as many requests held at once. chance_if_equal: that trees differ so often "
    "or more, if they differed as often as chains; below 0.01 they differ more often.",
    "logit_gap": "the expected token's logit less the other's, by one pass of transformers' model "
    "in float32 over the prompt and the common tokens, with the engine's weights.",
    "near_tie": "the gap is no larger than rounding of one logit to the type.",
    "sampling": "rounds at temperature 1 on a small target and head of random weights, tensors of "
    "the runner between guard words; memory is marked when no request is in any slot, as [rounds, "
    "bytes, captured programs].",
}


def run_engine_lossless(
    settings: EngineLosslessSettings, out: str | Path | None = None
) -> dict[str, Any]:
    """The report of all parts, ready for JSON.

    Finished cells are kept in a file beside ``out`` until the report is written, so that the same
    command goes on after an interruption, also with other parts, drafters or budgets.

    Args:
        settings: what is run.
        out: where the report goes.

    Raises:
        ValueError: something cannot be loaded, read or written; named.
    """
    file = None if out is None else check_output(out)
    kept = Partial(file, settings.same_run())
    place, plain = _place(settings, kept)
    tasks = tasks_of(settings)
    left = [task for task in tasks if kept.get(task.name) is None]
    start = perf_counter()
    with bar("rounds", len(left)) as advance:
        for task, result in run_tasks(place, left, settings.processes):
            kept.put(task.name, {"part": task.part, **result, "done_at": perf_counter() - start})
            advance()
    report = _report(settings, [kept.get(task.name) or {} for task in tasks], plain)
    if file is not None:
        write_report(file, report)
        kept.remove()
    return report


def passed(cell: Mapping[str, Any]) -> bool:
    """Whether a cell shows what its part is for."""
    if cell["part"] == EXACT:
        return not cell["differences"] and not cell["lacking"]
    if cell["part"] == ROUNDING:
        return not any(pair["tree_more_frequent"] for pair in cell["pairs"])
    same = cell["same_seed"]
    # A seed gives the same tokens where nothing is rounded differently.
    exact = cell["dtype"] != "float32" or same["requests"] == same["equal_to_plain_rounds"]
    clean = not cell["guards"]["broken"] and cell["memory"]["steady"]
    return bool(clean and exact and cell["preemptions"])


def _place(settings: EngineLosslessSettings, kept: Partial) -> tuple[Place, dict[str, Any]]:
    """What all tasks load, with the plain side's answers where a part needs them."""
    check = partial(check_round, settings.device, page=settings.page, batch=settings.batch)
    check()
    if set(settings.parts) == {SAMPLING}:
        return Place(settings=settings, target="", head="", cases=()), {}
    target = str(default_target()) if settings.target is None else settings.target
    head = settings.head
    if head is None:
        if not is_default_target(settings.target):
            raise ValueError(f"target {settings.target} needs --head: it has no default head")
        head = str(default_head())
    # What is no head or target shows now, in one line, not in the words of another process.
    head_config = read_config(Path(head))[0]
    shape = StackShape.from_config(load_config(target))
    check(head_dims={"target": shape.head_dim, "head": head_config.head_dim})
    load_tokenizer(target)
    plain = kept.get(_PLAIN_SIDE)
    if plain is None:
        plain = _plain_side(settings, target)
        kept.put(_PLAIN_SIDE, plain)
    cases = tuple(
        Case(name=one["name"], prompt=tuple(one["prompt"]), answer=tuple(one["tokens"]))
        for one in plain["answers"]
    )
    for case in cases:
        if len(case.prompt) + settings.max_new_tokens > shape.max_positions:
            raise ValueError(
                f"prompt {case.name!r} of {len(case.prompt)} tokens and {settings.max_new_tokens} "
                f"new ones do not fit the target's {shape.max_positions} positions"
            )
    return Place(settings=settings, target=target, head=head, cases=cases), plain


def _plain_side(settings: EngineLosslessSettings, target: str) -> dict[str, Any]:
    sets = load_sets(settings.prompts, limit=settings.limit, seed=settings.seed)
    named = [(f"{one.name} {prompt.name}", prompt.text) for one in sets for prompt in one.prompts]
    start = perf_counter()
    with bar("plain generate", len(named)) as advance:
        answers, used = plain_answers(
            [text for _, text in named],
            target=target,
            dtype="float32",
            device=settings.device,
            max_new_tokens=settings.max_new_tokens,
            threads=settings.threads or 1,
            processes=settings.processes,
            progress=advance,
        )
    gaps = [gap for answer in answers for gap in answer.gaps]
    return {
        "answers": [
            {"name": name, "prompt": answer.prompt, "tokens": answer.tokens}
            for (name, _), answer in zip(named, answers, strict=True)
        ],
        "smallest_logit_gap": min(gaps, default=None),
        "used": used,
        "seconds": perf_counter() - start,
    }


def _report(
    settings: EngineLosslessSettings, cells: Sequence[dict[str, Any]], plain: Mapping[str, Any]
) -> dict[str, Any]:
    for cell in cells:
        cell["passed"] = passed(cell)
    parts = {part: [cell for cell in cells if cell["part"] == part] for part in PARTS}
    exact = parts[EXACT]
    return {
        "format": FORMAT,
        "passed": all(cell["passed"] for cell in cells),
        "exact": exact,
        "answers_compared": sum(2 * cell["together"]["requests"] for cell in exact),
        "tokens_compared": sum(
            cell[run]["tokens"] for cell in exact for run in ("together", "alone")
        ),
        "differences": sum(len(cell["differences"]) for cell in exact),
        "preemptions": sum(cell["together"]["preemptions"] for cell in exact),
        "rounding": parts[ROUNDING],
        "sampling": parts[SAMPLING],
        "plain_side": {
            "what": "transformers' generate, greedy, float32, one prompt at a time, in other "
            "processes",
            "prompts": len(plain.get("answers", ())),
            "tokens": sum(len(one["tokens"]) for one in plain.get("answers", ())),
            **{name: value for name, value in plain.items() if name != "answers"},
        },
        "definitions": DEFINITIONS,
        "settings": asdict(settings) | {"budgets": [told_budget(b) for b in settings.budgets]},
        "provenance": provenance(settings.device),
    }
