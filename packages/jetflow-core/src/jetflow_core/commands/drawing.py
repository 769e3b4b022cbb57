"""The work of ``jetflow tree``."""

from __future__ import annotations

from itertools import islice
from typing import Any, Literal

from jetflow_tree import to_dot, to_mermaid, to_rich, to_text

from jetflow_core.commands.growing import GrowOptions
from jetflow_core.commands.models import ModelOptions
from jetflow_core.commands.screen import Screen
from jetflow_core.decode import Round
from jetflow_core.sampling import SamplingParams

Style = Literal["text", "dot", "mermaid"]


def draw(
    prompt: str,
    models: ModelOptions,
    trees: GrowOptions,
    screen: Screen,
    *,
    rounds: int,
    style: Style,
    chat: bool,
) -> None:
    """Draws the trees of the first rounds.

    Raises:
        ValueError: something cannot be loaded or does not fit.
    """
    options = trees.tree_options()
    engine = models.load(screen.progress)
    most = rounds * (engine.max_depth + 1)
    found = engine.rounds(
        [engine.encode(prompt, chat=chat)], [SamplingParams(max_new_tokens=most)], options
    )
    label = Label(engine.target.tokenizer)
    for number, result in enumerate(islice(found, rounds), start=1):
        _draw_round(number, result, label, style, screen)


class Label:
    """Names tokens so that spaces, line breaks and single bytes can be seen."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, token: int) -> str:
        """The token's text in quotes; its name in the vocabulary where it is no whole character."""
        text = self._tokenizer.decode([token])
        if "\ufffd" in text or not text:
            text = str(self._tokenizer.convert_ids_to_tokens(token))
        return repr(text)


def _draw_round(number: int, result: Round, label: Label, style: Style, screen: Screen) -> None:
    tree, accepted = result.tree, result.accepted
    title = (
        f"round {number}: {tree.num_nodes} rows, {len(accepted.nodes)} of {tree.num_nodes - 1} "
        "drafted nodes accepted"
    )
    if style == "dot":
        screen.line(f"// {title}\n{to_dot(tree, accepted, label)}")
    elif style == "mermaid":
        screen.line(f"%% {title}\n{to_mermaid(tree, accepted, label)}")
    elif screen.is_terminal:
        screen.line(title, style="bold")
        screen.show(to_rich(tree, accepted, label))
    else:
        screen.line(f"{title}\n{to_text(tree, accepted, label)}")
