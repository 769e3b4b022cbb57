"""Which runs of a study this process works on, beside others that work on the same study."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jetflow_train.ablation.folder import StudyFolder
from jetflow_train.ablation.locks import try_lock
from jetflow_train.ablation.results import failure, measured
from jetflow_train.ablation.study import Run, Study


def take_turns(folder: StudyFolder, study: Study, do: Callable[[Run], bool]) -> list[str]:
    """Does each open run that no other process holds, in order, as long as one can be had.

    A run that another holds, or whose start has no head yet, is passed over and looked at again
    after the others. Nothing is waited for: what is open in the end is held by others, or stands
    behind what they hold, and the last of them finds it when it is through.

    Args:
        folder: of the study.
        study: what is to be done.
        do: trains and measures a run, which is held meanwhile; False ends everything.

    Returns:
        Names of the runs that others held at the last look.
    """
    left: Sequence[Run] = study.runs()
    while True:
        open_, held = [], []
        for run in left:
            if _settled(folder, run):
                continue
            if _waits(folder, study, run):
                open_.append(run)
                continue
            with try_lock(folder.lock(run.name)) as mine:
                if not mine:
                    open_.append(run)
                    held.append(run.name)
                # Another may have been through with it between the look and the lock.
                elif not _settled(folder, run) and not do(run):
                    return held
        if len(open_) in (0, len(left)):
            return held
        left = open_


def _settled(folder: StudyFolder, run: Run) -> bool:
    return failure(folder, run) is not None or measured(folder, run) is not None


def _waits(folder: StudyFolder, study: Study, run: Run) -> bool:
    """Whether the head that ``run`` begins with is still to come."""
    if run.variant.start is None:
        return False
    start = Run(variant=study.plan.variant(run.variant.start), seed=run.seed)
    # One that was deleted after its measuring will not come: that is refused, not waited for.
    return not folder.finished(start.name) and not _settled(folder, start)
