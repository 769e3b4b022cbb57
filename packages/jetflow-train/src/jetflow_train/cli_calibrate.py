"""``jetflow calibrate``: how sharply a head's scores should be read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from jetflow_core.commands.numbers import Positive, whole
from jetflow_core.limits import MAX_BUDGET

_Many = Parameter(consume_multiple=True)


def command(
    *,
    head: Annotated[tuple[Path, ...], _Many],
    data: Annotated[tuple[Path, ...], _Many],
    target: Path | None = None,
    texts: Positive = 192,
    budget: Annotated[int, whole(2, MAX_BUDGET)] = 64,
    max_new_tokens: Positive = 128,
    workers: Annotated[int | None, whole(1, 1024)] = None,
) -> None:
    """Fit the temperatures at which a head's scores are read, and store them with the head.

    A greedy request asks for the best token, and the scores of a head that has learnt a
    distribution are too flat for that. For each temperature of the data, the sharpness with the
    largest tau is written into the head's config.json; weights and outputs stay as they are.

    Args:
        head: Folders of draft heads; each is fitted by itself.
        data: Data folders that the target wrote; training data will do.
        target: Folder of the target; the embedded one if left out.
        texts: Answers of each temperature that are walked; at least 16.
        budget: Rows of one verify pass, root included.
        max_new_tokens: Tokens of an answer that are walked.
        workers: Processes that walk; one for each CPU if left out.
    """
    # Only now: torch takes seconds to import.
    from jetflow_core.defaults import default_target

    from jetflow_train.cli import say
    from jetflow_train.evaluation.calibration import CalibrationSettings, calibrate
    from jetflow_train.evaluation.walkers import available_cpus

    settings = CalibrationSettings(
        texts=texts,
        budget=budget,
        max_new_tokens=max_new_tokens,
        workers=workers or available_cpus(),
    )
    folder = default_target() if target is None else target
    for place, pairs in calibrate(folder, head, data, settings, say).items():
        say(f"{place}: {dict(pairs)}")
