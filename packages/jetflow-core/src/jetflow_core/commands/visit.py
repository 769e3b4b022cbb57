"""The work of ``jetflow doctor``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jetflow_core.commands.models import ModelOptions
from jetflow_core.commands.screen import Screen
from jetflow_core.defaults import default_head, default_target, is_default_target
from jetflow_core.doctor.examine import NEW_TOKENS, PROMPTS, examine, open_pair
from jetflow_core.doctor.verdict import Agreement, Evidence, Verdict, judge
from jetflow_core.dtypes import default_dtype
from jetflow_core.engine import Engine
from jetflow_core.head.checkpoint import LoadedHead
from jetflow_core.reports.provenance import provenance
from jetflow_core.target import Target

_SHOWN_DEPTHS = 8


def visit(models: ModelOptions, screen: Screen, *, as_json: bool) -> int:
    """Examines the chosen head and tells; returns the exit code.

    Raises:
        ValueError: no head is named, or something cannot be loaded or does not fit.
    """
    device = models.torch_device()
    models.begin(screen.progress)
    head_path = _head_path(models)
    source = default_target() if models.target is None else models.target
    screen.progress("loading the models")
    target, head = open_pair(
        source, head_path, device=device, dtype=models.torch_dtype() or default_dtype(device)
    )
    plain = Engine(target, None)
    prompts = [plain.encode(text) for text in PROMPTS]
    evidence = examine(target, head, prompts, report=screen.progress)
    verdict = judge(evidence)
    if as_json:
        payload = _payload(target, head, evidence, verdict)
        screen.line(json.dumps(payload, indent=2, allow_nan=False))
    else:
        for line in (*_fit_lines(target, head), "", *_table(evidence), ""):
            screen.line(line)
        _tell(verdict, screen)
    return 0 if verdict.kind == "ok" else 1


def _head_path(models: ModelOptions) -> Path:
    if models.head is not None:
        return Path(models.head)
    if is_default_target(models.target):
        return default_head()
    raise ValueError("no head to examine: name its folder with --head")


def _fit_lines(target: Target, head: LoadedHead) -> list[str]:
    config, info = head.config, head.info
    tokenizer = (
        "the head does not name one"
        if info.tokenizer_sha256 is None
        else info.tokenizer_sha256[:12]
    )
    return [
        f"head {head.path} on target {target.tokenizer_source}: sizes fit",
        f"  hidden size {config.hidden_size}, vocabulary {config.vocab_size}, "
        f"{config.num_target_layers} layers, tokenizer {tokenizer}",
        f"  taps {list(config.target_layer_ids)}, depth {config.max_depth}, "
        f"{config.num_layers} layers, path rank {config.path_rank}, "
        f"trained for {info.target or 'an unnamed target'}",
        f"  positions: head {config.max_position_embeddings}, target {target.context_length}",
    ]


def _table(evidence: Evidence) -> list[str]:
    shown = min(_SHOWN_DEPTHS, len(evidence.right.by_depth))
    wrong = sorted(evidence.wrong, key=lambda wiring: -wiring.share)
    stored = _row("stored at training time", evidence.stored)
    rows = [stored] if evidence.stored else []
    rows += [_row(a.name, a.by_depth) for a in (evidence.right, *wrong)]
    head = f"{'share of best tokens that are right, depth':<44}" + "".join(
        f"{depth:>7}" for depth in range(1, shown + 1)
    )
    return [
        head,
        *(row[: 44 + 7 * shown] for row in rows),
        f"tokens a round as a chain: {evidence.right.chain:.2f}; by copying from the text: "
        f"{evidence.copying:.2f}",
        f"best tokens in which the engine's drafter differs from the replay: "
        f"{evidence.deviation:.1%}",
    ]


def _row(name: str, by_depth: tuple[float, ...]) -> str:
    return f"  {name:<42}" + "".join(f"{share:>7.3f}" for share in by_depth)


def _tell(verdict: Verdict, screen: Screen) -> None:
    screen.line(f"verdict: {verdict.kind}", style="bold" if verdict.kind == "ok" else "bold red")
    for reason in verdict.reasons:
        screen.line(f"  {reason}")


def _payload(
    target: Target, head: LoadedHead, evidence: Evidence, verdict: Verdict
) -> dict[str, Any]:
    return {
        "format": 1,
        "provenance": provenance(str(target.device)),
        "verdict": verdict.kind,
        "reasons": list(verdict.reasons),
        "head": str(head.path),
        "target": target.tokenizer_source,
        "dtype": str(target.dtype).removeprefix("torch."),
        "prompts": list(PROMPTS),
        "new_tokens": NEW_TOKENS,
        "stored_top1_by_depth": list(evidence.stored),
        "as_configured": _as_dict(evidence.right),
        "wrong_wirings": [_as_dict(agreement) for agreement in evidence.wrong],
        "drafter_deviation": evidence.deviation,
        "prompt_lookup_tau": evidence.copying,
    }


def _as_dict(agreement: Agreement) -> dict[str, Any]:
    return {
        "wiring": agreement.name,
        "top1_by_depth": list(agreement.by_depth),
        "share": agreement.share,
        "texts": len(agreement.hits),
        "roots": sum(len(hits) for hits in agreement.hits),
    }
