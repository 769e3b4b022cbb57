"""The report of a study, from what its runs left behind."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jetflow_core.reports.files import without_folders
from jetflow_core.reports.provenance import provenance

from jetflow_train.ablation.figures import DEFINITIONS, figures
from jetflow_train.ablation.folder import StudyFolder
from jetflow_train.ablation.measure import stored_walks
from jetflow_train.ablation.study import Run, Study, data_marks, run_name
from jetflow_train.files import write_text
from jetflow_train.heads import weights_sha256
from jetflow_train.records import RESULT

FORMAT = "jetflow-ablation/1"


def build_results(
    folder: StudyFolder, study: Study, texts: Sequence[Mapping[str, Any]], device: str
) -> dict[str, Any]:
    """The report, ready for JSON; of what is measured so far.

    Args:
        folder: of the study.
        study: what was to be done.
        texts: what is told of the answers, by set and temperature.
        device: where heads were measured.
    """
    done = [(run, walks) for run in study.runs() if (walks := measured(folder, run)) is not None]
    have = {run.name for run, _ in done}
    failed = {run.name: why for run in study.runs() if (why := failure(folder, run)) is not None}
    missing = [run.name for run in study.runs() if run.name not in have | failed.keys()]
    plan = study.plan.to_dict()
    runs = [row for run, walks in done for row in _rows(folder, study, run, walks)]
    return {
        "format": FORMAT,
        "complete": not missing,
        "plan": plan,
        "definitions": DEFINITIONS,
        "data": data_marks(study.data),
        "not_run": dict(study.not_run),
        "failed": failed,
        "missing": missing,
        "answers": list(texts),
        "figures": figures(plan, runs),
        "runs": runs,
        "provenance": provenance(device),
    }


def measured(folder: StudyFolder, run: Run) -> dict[str, Any] | None:
    """What a finished run's head did on the answers; None where that is not known yet.

    Heads of measured runs may be deleted, they are large; a run without its own record, or with
    another head than the measured one, counts as not measured.
    """
    walks, place = stored_walks(folder.walks(run.name)), folder.run(run.name)
    if walks is None or not (place / RESULT).is_file():
        return None
    deleted = not (place / "head").exists() and not folder.finished(run.name)
    if deleted or (
        folder.finished(run.name) and walks["weights_sha256"] == weights_sha256(place / "head")
    ):
        return walks
    return None


def failure(folder: StudyFolder, run: Run) -> str | None:
    """Why a training came to nothing; None where it did not."""
    file = folder.failed(run.name)
    return str(json.loads(file.read_text(encoding="utf-8"))["error"]) if file.exists() else None


def _rows(
    folder: StudyFolder, study: Study, run: Run, walks: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """One entry for each variant that is measured with the run's head."""
    result = json.loads((folder.run(run.name) / RESULT).read_text(encoding="utf-8"))
    return [
        {
            "variant": variant.name,
            "seed": run.seed,
            "run": run_name(variant.trained_as, run.seed),
            "steps": result["steps"],
            "seconds": result["seconds"],
            "loss_rows": result["loss_rows"],
            "parameters": walks["parameters"],
            "weights_sha256": walks["weights_sha256"],
            "policies": [row for row in walks["rows"] if row["builder"] == variant.builder],
        }
        for variant in study.sharing(run.variant.name)
    ]


def write_results(file: Path, results: Mapping[str, Any]) -> None:
    """The report as JSON, a list of numbers in one line."""
    plain = {name: without_folders(value) for name, value in results.items()}
    text = json.dumps(plain, indent=1, allow_nan=False)
    lists = re.compile(r"\[\s+(-?[0-9][-+.0-9eE,\s]*?)\s+\]")
    text = lists.sub(lambda match: f"[{' '.join(match[1].split())}]", text)
    write_text(file, text + "\n")
