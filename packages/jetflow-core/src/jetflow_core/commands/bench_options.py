"""What the bench commands have in common on the command line."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Prompts = Annotated[
    tuple[str, ...],
    Parameter(
        consume_multiple=True,
        help='JSONL files, each line an object with a text under "prompt"; or builtin.',
    ),
]
Limit = Annotated[
    int | None,
    Parameter(help="Most prompts of a file, drawn with the seed; left out: all."),
]
Out = Annotated[str | None, Parameter(help="Write the report into this JSON file.")]
Budgets = Annotated[
    str, Parameter(help="Rows of one verify pass, root included; 1 is plain decoding.")
]
MaxNewTokens = Annotated[
    int, Parameter(help="Most tokens of an answer; long greedy texts loop, and loops raise tau.")
]
