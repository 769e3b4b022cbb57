"""The whole job of evaluating a stored head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jetflow_core.head.checkpoint import load_head

from jetflow_train.evaluation.offline import evaluate_sets
from jetflow_train.evaluation.sets import load_eval_sets
from jetflow_train.run import open_target

Report = Callable[[str], None]


def run_evaluate(
    target_dir: Path,
    head_dir: Path,
    eval_sets: Mapping[str, Sequence[Path]],
    *,
    limit: int = 128,
    report: Report = print,
) -> dict[str, dict[str, Any]]:
    """Tau of a stored head on held-out prompts."""
    prompts = load_eval_sets(target_dir, eval_sets, limit)
    target = open_target(target_dir)
    head = load_head(head_dir, device=target.device).head
    return evaluate_sets(target, head, prompts, report)
