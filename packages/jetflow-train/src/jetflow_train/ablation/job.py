"""The whole job of ``jetflow ablate``: train what is missing, measure it, write the report."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from jetflow_train.ablation.folder import STUDY, StudyFolder, check_study, claim
from jetflow_train.ablation.locks import lock
from jetflow_train.ablation.measure import measure, policies
from jetflow_train.ablation.plan import BUILDERS
from jetflow_train.ablation.plots import plot_study
from jetflow_train.ablation.results import build_results, failure, write_results
from jetflow_train.ablation.stored_answers import AnsweredSet, answer_sets, held_out
from jetflow_train.ablation.study import Run, Study, run_name
from jetflow_train.ablation.table import table
from jetflow_train.ablation.turns import take_turns
from jetflow_train.evaluation.sets import HeldOut
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.files import write_json, write_text
from jetflow_train.guard import DivergedError
from jetflow_train.run import open_target, run_train
from jetflow_train.settings import TrainSettings
from jetflow_train.state import STATE
from jetflow_train.target import FrozenTarget

Report = Callable[[str], None]


def run_study(
    study: Study,
    out: Path,
    target_dir: Path,
    *,
    over: Callable[[], bool] = lambda: False,
    workers: int = 1,
    plots: bool = False,
    report: Report = print,
) -> bool:
    """Goes on with a study; says whether everything that can run is measured.

    Several processes may do so at the same time: each takes the runs that no other holds, and
    the report is written of what all of them have left.

    Args:
        study: what to do.
        out: its folder.
        target_dir: folder of the target.
        over: asked before each training, each answered and each walked set, and before each step
            of a training; True: nothing more is begun, and what is in hand is saved.
        workers: processes that walk.
        plots: draw pictures.
        report: takes lines of progress.

    Raises:
        DataMismatchError: ``out`` holds another study, or something in it is damaged.
        OutputError: something in ``out`` cannot be written or locked.
        ValueError: a run is refused; see ``run_train``.
    """
    folder = StudyFolder(out)
    check_study(folder, study)
    for name, why in study.not_run.items():
        report(f"{name}: not run: {why}")
    target = open_target(target_dir)
    sets = held_out(target, target_dir, study.plan.evaluation)
    claim(folder, study, target.fingerprint)
    with Walkers(workers) as walkers:
        work = _Work(folder, study, target, target_dir, sets, walkers, over, report)
        held = take_turns(folder, study, work.do)
    with lock(folder.lock(STUDY)):
        # Another process may have been given more data meanwhile, of which this one cannot tell.
        check_study(folder, study)
        results = work.write_report(plots)
    held = [name for name in held if name in results["missing"]]
    for name in results["missing"]:
        if name not in held:
            report(f"{name}: not finished")
    if held:
        report(f"held by other processes: {', '.join(held)}")
    return bool(results["complete"])


@dataclass(slots=True)
class _Work:
    folder: StudyFolder
    study: Study
    target: FrozenTarget
    target_dir: Path
    sets: list[HeldOut]
    walkers: Walkers
    over: Callable[[], bool]
    report: Report
    answered: list[AnsweredSet] | None = None

    def do(self, run: Run) -> bool:
        """Trains and measures what is missing of ``run``; False: time is over, or a signal came."""
        runs = self.study.runs()
        shown = f"{runs.index(run) + 1}/{len(runs)} {run.name}"
        if not self.folder.finished(run.name):
            if self.over() or not self._train(run, shown):
                return False
            if failure(self.folder, run) is not None:
                return True
        return self._measure(run, shown)

    def write_report(self, plots: bool) -> dict[str, Any]:
        """Writes what all processes have left so far, with pictures if wanted; it comes back."""
        # The answers as far as they are needed and there.
        texts = [each.figures() for each in self._stored_answers(stop=lambda: True)]
        results = build_results(self.folder, self.study, texts, str(self.target.device))
        write_results(self.folder.results, results)
        write_text(self.folder.table, table(results))
        if plots and results["figures"]:
            for picture in plot_study(results, self.folder.plots):
                self.report(f"drew {picture}")
        return results

    def _train(self, run: Run, shown: str) -> bool:
        def say(line: str) -> None:
            self.report(f"{shown}: {line}")

        _forget_the_last_run()
        start = run.variant.start
        before = start and failure(
            self.folder, Run(variant=self.study.plan.variant(start), seed=run.seed)
        )
        if before:
            return self._note(run, f"it starts with {start}: {before}", say)
        settings = self._settings(run)
        try:
            head = run_train(settings, target=self.target, stop_asked=self.over, report=say)
        except DivergedError as error:
            # The same steps would only end there again; the other variants can go on.
            return self._note(run, str(error), say)
        return head is not None

    def _note(self, run: Run, why: str, say: Report) -> bool:
        write_json(self.folder.failed(run.name), {"error": why})
        say(f"failed: {why}")
        return True

    def _settings(self, run: Run) -> TrainSettings:
        place, start = self.folder.run(run.name), run.variant.start
        return replace(
            self.study.settings[run.variant.name],
            out=place,
            target=self.target_dir,
            seed=run.seed,
            start_head=self.folder.run(run_name(start, run.seed)) / "head" if start else None,
            resume=(place / STATE).exists(),
        )

    def _measure(self, run: Run, shown: str) -> bool:
        answered = None if self.over() else self._answers()
        if answered is None or self.over():
            return False
        began = time.monotonic()
        used = {each.builder for each in self.study.sharing(run.variant.name)}
        grown = policies(
            [name for name in BUILDERS if name in used], self.study.plan.evaluation.budgets
        )
        head, out = self.folder.run(run.name) / "head", self.folder.walks(run.name)
        if measure(self.target, head, answered, grown, self.walkers, out, self.over) is None:
            self.report(f"{shown}: measured in part")
            return False
        self.report(f"{shown}: measured in {time.monotonic() - began:.1f} s")
        return True

    def _answers(self) -> list[AnsweredSet] | None:
        """All answers; None where time ends before they are written."""
        if self.answered is None:
            found = list(self._stored_answers(stop=self.over))
            if len(found) == len(self.sets) * len(self.study.plan.evaluation.temperatures):
                self.answered = found
        return self.answered

    def _stored_answers(self, *, stop: Callable[[], bool]) -> Iterator[AnsweredSet]:
        return answer_sets(
            self.folder.answers,
            self.target,
            self.sets,
            self.study.plan.evaluation,
            stop=stop,
            report=self.report,
        )


def _forget_the_last_run() -> None:
    """Frees what another run left on the device, and what was compiled for its shapes."""
    gc.collect()
    if torch.cuda.is_available():
        # Shapes differ from run to run, and a function is compiled for a few of them at most.
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
