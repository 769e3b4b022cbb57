"""The whole job of ``jetflow eval``: checks, answers, walks, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jetflow_core.bench.summary import INTERVAL
from jetflow_core.defaults import default_target
from jetflow_core.embedded import EMBEDDED_NAME
from jetflow_core.fit import check_sizes, check_vocabulary
from jetflow_core.head.checkpoint import LoadedHead, load_head, read_config
from jetflow_core.head.model import DraftHead
from jetflow_core.loading import load_config, load_tokenizer
from jetflow_core.offline import RowBackend
from jetflow_core.reports.loops import LOOP_DEFINITION
from jetflow_core.reports.provenance import provenance
from jetflow_core.reports.tau import TAU_FORMULA

from jetflow_train.answering import told_backend
from jetflow_train.evaluation.answers import Answers, answer_prompts
from jetflow_train.evaluation.figures import (
    RATIO_INTERVAL,
    head_figures,
    set_figures,
    top1_figures,
)
from jetflow_train.evaluation.offline import Evaluation, Walked, evaluate
from jetflow_train.evaluation.pass_times import PASS_SECONDS, pass_seconds
from jetflow_train.evaluation.policies import (
    BASE,
    HEAD_SLOTS,
    OWN,
    all_policies,
    exact_policies,
    second_pass_policies,
)
from jetflow_train.evaluation.sets import HeldOut, held_out_sets, longest_prompt
from jetflow_train.evaluation.settings import EvalSettings, head_names
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.prompts import named_sets
from jetflow_train.run import open_target
from jetflow_train.target import FrozenTarget, positions

FORMAT = "jetflow-eval/1"

Report = Callable[[str], None]

DEFINITIONS = {
    "tau": TAU_FORMULA,
    "tau_interval": INTERVAL,
    "ratio_to_first": RATIO_INTERVAL,
    "loop": LOOP_DEFINITION,
    "walk": (
        "rounds are counted by walking the target's stored answers with trees of the head's "
        "drafts; they are those of real decoding that writes the same text"
    ),
    "budget": "rows of one verify pass, root included; 1 is plain decoding",
    "head_slots": HEAD_SLOTS,
    "pass_seconds": PASS_SECONDS,
    "second-pass": (
        "the head runs again over the tree that its first pass gave, under the tree's mask; the "
        "final tree of the same budget grows from what it then says of each node's children"
    ),
    "candidates": "head: as the head drafts; base: its path term left out, everything else alike",
    "accepted_by_depth": (
        "reached: walks that came to a node with children of this depth; accepted: those that "
        "went on to one of them"
    ),
    "accepted_by_rank": "accepted tokens by their place among the candidates of their depth",
    "top1": "share of all roots at which a depth's first candidate is the text's token",
    "cut_by_length": "answers that ended at their most tokens, without a stop token",
}


@dataclass(frozen=True, slots=True)
class NamedHead:
    """A head on the target's device and in its type, as the decode engine runs it."""

    name: str
    loaded: LoadedHead

    @property
    def head(self) -> DraftHead:
        """Its weights."""
        return self.loaded.head


def run_eval(
    settings: EvalSettings, report: Report, backend: RowBackend | None = None
) -> dict[str, Any]:
    """The report of an evaluation, ready for JSON.

    What is wrong with files and folders shows before the target is loaded.

    Args:
        settings: what to do.
        report: takes lines of progress.
        backend: attention with which the target answers; None: the one installed for its device.

    Raises:
        ValueError: something cannot be read or loaded, or does not fit; named.
        RuntimeError: the installed attention cannot be loaded.
    """
    folder = default_target() if settings.target is None else settings.target
    sets = _sets(settings, folder)
    check_heads(settings.heads, folder)
    if settings.second_pass:
        check_second_pass(settings.heads)
    loaded = [load_head(head) for head in settings.heads]
    target = open_target(folder)
    for each in loaded:
        each.head.to(device=target.device, dtype=target.dtype)
    names = head_names(settings.heads)
    heads = [NamedHead(name, each) for name, each in zip(names, loaded, strict=True)]
    # Before anything that takes long.
    told = [_head(each, target, settings) for each in heads]
    backend = told_backend(target, report, backend)
    with Walkers(settings.workers) as walkers:
        done = [_set(target, heads, one, settings, walkers, report, backend) for one in sets]
    device = str(target.device)
    return {
        "format": FORMAT,
        "settings": _plain(asdict(settings)),
        "used": {
            "target": EMBEDDED_NAME if settings.target is None else settings.target.name,
            "target_fingerprint": target.fingerprint,
            "dtype": str(target.dtype).removeprefix("torch."),
            "device": device,
            "threads": torch.get_num_threads(),
            "row_attention": backend.name,
        },
        "definitions": DEFINITIONS,
        "heads": told,
        "sets": done,
        "provenance": provenance(device),
    }


def check_heads(folders: Sequence[Path], target: Path) -> None:
    """Compares what each head says of its target with the folder of the one at hand.

    Raises:
        ValueError: a folder holds no head, or one for another target; named, no weight is read.
    """
    found = [(folder, *read_config(folder)) for folder in folders]
    shape = load_config(target)
    for folder, config, _ in found:
        check_sizes(
            config,
            folder,
            hidden_size=shape.hidden_size,
            vocab_size=shape.vocab_size,
            num_layers=shape.num_hidden_layers,
        )
    if any(info.tokenizer_sha256 is not None for _, _, info in found):
        tokenizer = load_tokenizer(target)
        for folder, _, info in found:
            check_vocabulary(info, folder, tokenizer)


def check_second_pass(folders: Sequence[Path]) -> None:
    """Refuses a second pass of heads that were not trained for it.

    Raises:
        ValueError: naming the first of them.
    """
    for folder in folders:
        if not read_config(folder)[0].prefix_filled:
            raise ValueError(
                f"--second-pass needs heads that were trained with --prefix-fill; the head at "
                f"{folder} was not"
            )


def _sets(settings: EvalSettings, folder: Path) -> list[HeldOut]:
    longest = longest_prompt(positions(load_config(folder)), settings.max_new_tokens)
    # As the first head's texts were written: the other heads are held against it.
    thinking = read_config(settings.heads[0])[1].thinking
    return held_out_sets(folder, named_sets(settings.prompts), settings.limit, longest, thinking)


def _set(
    target: FrozenTarget,
    heads: Sequence[NamedHead],
    one: HeldOut,
    settings: EvalSettings,
    walkers: Walkers,
    report: Report,
    backend: RowBackend,
) -> dict[str, Any]:
    found = []
    for temperature in settings.temperatures:
        began = time.monotonic()
        answers = answer_prompts(
            target,
            one.prompts,
            temperature=temperature,
            max_new_tokens=settings.max_new_tokens,
            seed=settings.seed,
            backend=backend,
        )
        where = f"{one.name} at temperature {temperature:g}"
        report(f"{where}: {answers.tokens:,} tokens in {time.monotonic() - began:.1f} s")
        found.append(_temperature(target, heads, answers, settings, walkers, report, where))
    return {
        "name": one.name,
        "prompts": len(one.prompts),
        "prompts_too_long": one.too_long,
        "provenance": dict(one.provenance),
        "temperatures": found,
    }


def _temperature(
    target: FrozenTarget,
    heads: Sequence[NamedHead],
    answers: Answers,
    settings: EvalSettings,
    walkers: Walkers,
    report: Report,
    where: str,
) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    top1: list[dict[str, Any]] = []
    first: Mapping[str, Walked] | None = None
    for each in heads:
        began = time.monotonic()
        found = _walked(target, each.head, answers, settings, walkers)
        rows += head_figures(each.name, found, answers, first)
        top1 += top1_figures(each.name, found)
        first = first or found.of(OWN)
        taus = " ".join(f"{name} {walked.tau:.2f}" for name, walked in found.of(OWN).items())
        report(f"{where}, {each.name}: {taus} ({time.monotonic() - began:.1f} s)")
    return {**set_figures(answers), "rows": rows, "top1": top1}


def _walked(
    target: FrozenTarget,
    head: DraftHead,
    answers: Answers,
    settings: EvalSettings,
    walkers: Walkers,
) -> Evaluation:
    depth, budgets = head.config.max_depth, sorted(settings.budgets)
    again = second_pass_policies(budgets) if settings.second_pass else ()
    policies = {OWN: (*all_policies(budgets, depth), *again)}
    if head.path is not None:
        policies[BASE] = (*exact_policies(budgets, depth), *again)
    return evaluate(target, head, answers, policies, walkers)


def _head(each: NamedHead, target: FrozenTarget, settings: EvalSettings) -> dict[str, Any]:
    config, info = each.loaded.config, each.loaded.info
    times = (
        {"pass_seconds": pass_seconds(target, each.head, sorted(settings.budgets))}
        if settings.second_pass
        else {}
    )
    return {
        "name": each.name,
        "target": info.target,
        "depth": config.max_depth,
        "layers": config.num_layers,
        "path_rank": config.path_rank,
        "candidates": config.candidates,
        "causal": config.causal,
        "prefix_filled": config.prefix_filled,
        "parameters": sum(parameter.numel() for parameter in each.head.parameters()),
        **times,
    }


def _plain(value: Any) -> Any:
    """``value`` as JSON takes it: paths become the names of their files."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.name if isinstance(value, Path) else value
