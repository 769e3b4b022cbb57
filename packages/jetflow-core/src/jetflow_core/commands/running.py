"""Decoding prompts one after the other, with the text of every token and the time it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from jetflow_core.decode import Round
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.picker import Pick
from jetflow_core.reports.tau import WrittenText
from jetflow_core.sampling import SamplingParams
from jetflow_core.stopping import FinishReason

Show = Callable[[str, bool], None]
"""Takes a piece of text, and whether the token that completed it was drafted and accepted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One prompt's decoding."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish: FinishReason
    picks: tuple[Pick, ...]
    rounds: tuple[Round, ...]
    prefill_seconds: float
    """From the start to the first round, the head's first draft not included."""
    seconds: float
    """Spent in the decode loop, prefill included; not loading, measuring costs, or printing."""

    @property
    def written(self) -> WrittenText:
        """The text with its rounds, for the figures of a report."""
        return WrittenText(self.prompt, self.tokens, [len(r.picks) for r in self.rounds])

    @property
    def tokens_per_second(self) -> float:
        """New tokens by ``seconds``; 0.0 without any."""
        return len(self.tokens) / self.seconds if self.seconds else 0.0


@dataclass(slots=True)
class _Collector:
    """A run while it goes on."""

    prompt: tuple[int, ...]
    show: Show
    rounds: list[Round] = field(default_factory=list)
    seconds: float = 0.0
    prefill_seconds: float = 0.0

    def add(self, result: Round, seconds: float) -> None:
        if not self.rounds:
            self.prefill_seconds = seconds - result.phases.total
        self.rounds.append(result)
        self.seconds += seconds
        for index, piece in enumerate(result.pieces):
            if piece:
                self.show(piece, index < len(result.accepted.nodes))

    def finish(self, reason: FinishReason) -> Run:
        picks = tuple(pick for r in self.rounds for pick in r.picks)
        return Run(
            prompt=self.prompt,
            tokens=tuple(pick.token for pick in picks),
            text="".join(r.text for r in self.rounds),
            finish=reason,
            picks=picks,
            rounds=tuple(self.rounds),
            prefill_seconds=self.prefill_seconds,
            seconds=self.seconds,
        )


def quietly(_piece: str, _accepted: bool) -> None:
    """Shows nothing."""


def run_prompts(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    params: SamplingParams,
    options: TreeOptions,
    show: Show = quietly,
) -> Iterator[Run]:
    """Decodes the prompts one after the other; yields each when it is finished.

    Args:
        engine: the models.
        prompts: token ids.
        params: rules for all, with a seed.
        options: how trees are grown.
        show: called with each piece of text as it comes.

    Raises:
        ValueError: a prompt or an option does not fit; before the first piece of any prompt.
    """
    rounds = engine.rounds(prompts, [params] * len(prompts), options)
    if params.max_new_tokens == 0:
        yield from (_Collector(prompt, show).finish("length") for prompt in prompts)
        return
    running: _Collector | None = None
    while True:
        start = perf_counter()
        result = next(rounds, None)
        seconds = perf_counter() - start
        if result is None:
            return
        running = running or _Collector(prompts[result.request], show)
        running.add(result, seconds)
        if result.finish is not None:
            yield running.finish(result.finish)
            running = None
