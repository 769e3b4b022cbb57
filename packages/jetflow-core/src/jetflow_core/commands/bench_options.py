"""What the bench commands have in common on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from cyclopts import Parameter

from jetflow_core.commands.models import ModelOptions, prepare_default_target
from jetflow_core.commands.numbers import whole
from jetflow_core.limits import MAX_SLOTS
from jetflow_core.reports.files import write_report

Prompts = Annotated[
    tuple[str, ...],
    Parameter(
        consume_multiple=True,
        help='JSONL files, each line an object with a text under "prompt"; or builtin.',
    ),
]
Limit = Annotated[
    int | None,
    whole(1),
    Parameter(help="Most prompts of a file, drawn with the seed; left out: all."),
]
Out = Annotated[str | None, Parameter(help="Write the report into this JSON file.")]
Budgets = Annotated[
    str,
    Parameter(
        help="Rows of one verify pass, root included, 1 to 256, with commas; 1 is plain decoding."
    ),
]
MaxNewTokens = Annotated[
    int,
    whole(1, 10**6),
    Parameter(help="Most tokens of an answer; long greedy texts loop, and loops raise tau."),
]
Repeats = Annotated[int, whole(1, 10**6)]
Slots = Annotated[int, whole(1, MAX_SLOTS), Parameter(help="Prompts decoded together in one pass.")]
Device = Annotated[
    str, Parameter(help="cpu, cuda or cuda:N; auto: cuda if there is one, else cpu.")
]


def torch_device(name: str) -> str:
    """The device's name, checked; "auto" decided.

    Raises:
        ValueError: there is no such device, or not on this machine.
    """
    return ModelOptions(device=name).torch_device()


def ready_target(target: str | None) -> None:
    """Converts the embedded target where it is the one, with a line on stderr.

    Raises:
        ValueError: it cannot be provided.
    """
    if target is None:
        prepare_default_target(lambda _line: None)


def finish(out: str | None, report: Mapping[str, Any], show: Callable[[], None]) -> None:
    """Writes a finished report and shows it; shown it is even where it cannot be written.

    Raises:
        OutputError: it cannot be written.
    """
    try:
        if out is not None:
            write_report(out, report)
    finally:
        show()
