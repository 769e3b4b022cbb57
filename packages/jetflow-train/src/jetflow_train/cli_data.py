"""``jetflow data corpus``: training data from what somebody else wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from jetflow_core.commands.numbers import Positive, whole


def corpus(
    *,
    prompts: Annotated[list[Path], Parameter(consume_multiple=True)],
    out: Path,
    target: Path | None = None,
    max_new_tokens: Positive = 160,
    max_prompt_tokens: Positive = 384,
    limit: Annotated[int | None, whole(1)] = None,
) -> None:
    """Make training data from prompts with answers that somebody else wrote.

    A head learns less from them than from its target's own answers (`data regenerate`): this is
    for the comparison. The manifest marks the data, and training on it says so.

    Args:
        prompts: JSONL files with the keys `prompt` and `answer`.
        out: Data folder to write.
        target: Folder of the target whose tokenizer and chat template are used; the embedded
            SmolLM2-135M-Instruct if left out.
        max_new_tokens: Lines with longer answers are skipped.
        max_prompt_tokens: Lines with longer prompts are skipped.
        limit: Lines taken from each file.
    """
    from jetflow_train.cli import say
    from jetflow_train.corpus_text import CorpusTextConfig, corpus_data, read_answers
    from jetflow_train.files import check_folder

    config = CorpusTextConfig(max_new_tokens=max_new_tokens, max_prompt_tokens=max_prompt_tokens)
    check_folder(out)
    for file in prompts:
        read_answers(file, limit)
    # Only now: torch takes seconds to import.
    from jetflow_core.defaults import default_target

    from jetflow_train.run import open_target

    folder = default_target() if target is None else target
    manifest = corpus_data(open_target(folder), folder, prompts, out, config, limit)
    tokens, jobs = sum(entry["tokens"] for entry in manifest["shards"]), manifest["jobs"]
    say(
        f"{jobs['answered']:,} sequences, {tokens:,} tokens with prompts, "
        f"{jobs['skipped']:,} lines skipped because they are too long"
    )
