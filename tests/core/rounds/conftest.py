"""Shared by the tests of rounds: targets as stacks, drafters that know the answer, a runner."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jetflow_core.engine import Engine
from jetflow_core.rounds import (
    Budgets,
    CommittedRows,
    DraftInputs,
    Finished,
    FixedBudget,
    HeadRound,
    LiveBatch,
    RoundDrafter,
    RoundRequest,
    RoundRunner,
    RunnerSettings,
    Shares,
    TorchRoundOps,
    row_bytes,
)
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import DecoderStack, stack_of_model
from jetflow_core.target import Target
from torch import Tensor

TAPS = (0, 1, 3)
KINDS = ("first", "hidden", "wrong")


class ScriptedDraft:
    """A ``RoundDrafter`` that knows whole texts.

    Kinds: "first" puts the right token first at every depth, "hidden" at some rank, so that the
    accepted rows are not adjacent, "wrong" leaves it out. "mixed" treats one text in one of these
    ways and the next in another.
    """

    row_bytes, scratch_rows, reads_features = 0, 0, False

    def __init__(self, texts: Sequence[Sequence[int]], kind: str, *, depth: int = 5) -> None:
        self.depth = depth
        self._texts = [tuple(text) for text in texts]
        all_kinds = [*KINDS] if kind == "mixed" else [kind]
        self._kinds = [KINDS.index(all_kinds[i % len(all_kinds)]) for i in range(len(texts))]
        self.begun: list[tuple[int, ...]] = []

    @property
    def changes(self) -> Sequence[Tensor]:
        return ()

    def allocate(self, *, pages: int, page: int, slots: int) -> None:
        longest = max(map(len, self._texts)) + self.depth
        self._known = torch.zeros(slots, longest, dtype=torch.int32)
        self._kind = torch.zeros(slots, dtype=torch.int64)

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams) -> None:
        self.begun.append(tuple(tokens))
        index = next(i for i, t in enumerate(self._texts) if t[: len(tokens)] == tuple(tokens))
        text = self._texts[index]
        self._kind[slot].fill_(self._kinds[index])
        self._known[slot].fill_(0)
        self._known[slot, : len(text)] = torch.tensor(text, dtype=torch.int32)

    def move(self, source: int, goal: int) -> None:
        self._known[goal].copy_(self._known[source])
        self._kind[goal].copy_(self._kind[source])

    def absorb(self, rows: CommittedRows) -> None:
        raise AssertionError("nobody asked for features")

    def propose(self, inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        width, steps = 4, torch.arange(1, self.depth + 1)
        places = (inputs.prefix_len[:, None] + steps).clamp(max=self._known.shape[1] - 1)
        right = self._known[inputs.slots].gather(1, places.long())
        first, hidden, wrong = (
            (self._kind[inputs.slots] == kind).int()[:, None, None] for kind in range(3)
        )
        rank = hidden * ((places * 7 + steps * 3) % width)[..., None]
        tokens = (right[..., None] + (torch.arange(width) - rank) % width + wrong) % 128
        scores = -0.1 - (0.6 + 2.4 * first) * torch.arange(width).expand(*tokens.shape)
        return tokens.int(), scores[:, :, None]


class Unequal:
    """Budgets that differ from request to request and round to round."""

    most = 13

    def __init__(self) -> None:
        self._round = 0

    def share(self, batch: LiveBatch) -> Shares:
        self._round += 1
        rows = tuple(1 + (5 * i + 3 * self._round) % self.most for i in batch.requests)
        return Shares(rows=rows, total=sum(rows))


@pytest.fixture(scope="session")
def scripted() -> type[ScriptedDraft]:
    """The drafter that knows whole texts."""
    return ScriptedDraft


@pytest.fixture(scope="session")
def unequal() -> type[Unequal]:
    """Budgets that differ from request to request and round to round."""
    return Unequal


@pytest.fixture(scope="session")
def tiny_stack(tiny_model: Callable[..., Any]) -> DecoderStack:
    """The weights of ``tiny_target`` as a stack."""
    return stack_of_model(tiny_model("qwen3"), taps=TAPS)


@pytest.fixture(scope="session")
def plain_engine(tiny_target: Target) -> Engine:
    """The oracle: the other engine, without a head."""
    return Engine(tiny_target, None)


@pytest.fixture(scope="session")
def head_round(tiny_stack: DecoderStack) -> Callable[..., HeadRound]:
    """Makes a round's drafter of a ``LoadedHead`` for the tiny stack."""

    def make(loaded: Any, stack: DecoderStack = tiny_stack, **options: Any) -> HeadRound:
        return HeadRound.fitted(loaded, stack, TorchRoundOps(), **options)

    return make


@pytest.fixture(scope="session")
def runner(tiny_stack: DecoderStack) -> Callable[..., RoundRunner]:
    """Makes a runner with pages of 4 rows: `runner(drafter, pages=.., budget=.., slots=..)`."""

    def make(
        drafter: RoundDrafter | None = None, *, pages: int = 400,
        budget: int | Budgets | None = None, slots: int = 4,
        stack: DecoderStack = tiny_stack, prefill_rows: int = 8,
    ) -> RoundRunner:  # fmt: skip
        row = row_bytes(stack, drafter) if drafter else row_bytes(stack, _nothing())
        settings = RunnerSettings(
            memory=pages * 4 * row, slots=slots, page=4, prefill_rows=prefill_rows
        )
        usual = 16 if drafter else 1
        budgets = budget or usual
        if isinstance(budgets, int):
            budgets = FixedBudget(budgets)
        return RoundRunner(stack, drafter, settings, budgets=budgets)

    return make


def _nothing() -> RoundDrafter:
    from jetflow_core.rounds import NoDraft

    return NoDraft()


@pytest.fixture(scope="session")
def answer() -> Callable[..., list[Finished]]:
    """Runs prompts to their ends and checks that the runner is empty afterwards."""

    def run(
        runner: RoundRunner, prompts: Sequence[Sequence[int]],
        params: SamplingParams | Sequence[SamplingParams], eos: Sequence[int] = (),
    ) -> list[Finished]:  # fmt: skip
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        found = runner.generate([
            RoundRequest.of(prompt, rules, eos_ids=eos, vocab_size=128)
            for prompt, rules in zip(prompts, each, strict=True)
        ])  # fmt: skip
        runner.tables.check()
        assert runner.tables.num_free == runner.pages
        return found

    return run
