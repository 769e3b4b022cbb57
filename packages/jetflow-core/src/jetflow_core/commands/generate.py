"""``jetflow generate``: text from prompts, with what it took to write it."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from jetflow_core.commands.growing import GrowOptions
from jetflow_core.commands.models import ModelOptions
from jetflow_core.commands.sampling import SamplingOptions
from jetflow_core.commands.texts import checked_prompts, read_stdin
from jetflow_core.reports.files import check_output
from jetflow_core.thinking import thinking_of

_MODELS, _TREES, _SAMPLING = ModelOptions(), GrowOptions(), SamplingOptions()


def command(
    *prompts: Annotated[str, Parameter(help="Texts to answer.")],
    stdin: Annotated[
        bool, Parameter(name="-", help="Answer what stdin holds, after the other prompts.")
    ] = False,
    models: ModelOptions = _MODELS,
    trees: GrowOptions = _TREES,
    sampling: SamplingOptions = _SAMPLING,
    raw: Annotated[
        bool, Parameter(help="Continue the text as it is, without a chat template.")
    ] = False,
    thinking: Annotated[
        Literal["on", "off"] | None,
        Parameter(
            help="Whether the chat template lets the target think aloud; as the template has it "
            "if left out."
        ),
    ] = None,
    compare: Annotated[
        bool,
        Parameter(
            help="Decode plainly as well (same engine, budget 1, afterwards) and tell the speed-up "
            "of the decode loop, loading left out."
        ),
    ] = False,
    check_lossless: Annotated[
        bool,
        Parameter(
            help="Decode plainly as well and tell the first differing token with its logit gap; "
            "exit code 1 if rounding does not explain it."
        ),
    ] = False,
    stats: Annotated[
        str | None, Parameter(help="Write all figures into this JSON file, rounds included.")
    ] = None,
) -> int:
    """Write text with a target and a draft head, and say how fast it went.

    Several prompts are answered one after the other. On a terminal, drafted tokens that the target
    accepted are green. The line after each text tells tau = new tokens / rounds: a round is one
    draft and one pass of the target, and gives its accepted tokens and one more. Prompt lookup is
    the tau that copying from the text itself would reach.
    """
    if not prompts and not stdin:
        raise ValueError("no prompt: give at least one text, or - to read it from stdin")
    models.check()
    trees.check()
    sampling.params()
    if raw and thinking is not None:
        raise ValueError("--thinking is a switch of the chat template, and --raw uses none")
    if stats is not None:
        check_output(stats)
    texts = checked_prompts((*prompts, read_stdin()) if stdin else prompts)
    # Only now: the models' libraries take seconds to import.
    from jetflow_core.commands.screen import Screen
    from jetflow_core.commands.writing import Writing, write

    with Screen() as screen:
        wanted = Writing(
            texts=texts,
            models=models,
            trees=trees,
            sampling=sampling,
            chat=not raw,
            thinking=thinking_of(thinking),
            compare=compare,
            check_lossless=check_lossless,
            stats=stats,
        )
        return write(wanted, screen)
