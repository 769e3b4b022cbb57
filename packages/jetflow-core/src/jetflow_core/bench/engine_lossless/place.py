"""What every part of the check loads: target, head and prompts with transformers' answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from jetflow_core.bench.engine.sides import ChosenBudget, WatchedAuto
from jetflow_core.bench.engine_lossless.scripted import ScriptedRounds
from jetflow_core.bench.engine_lossless.settings import EngineLosslessSettings
from jetflow_core.head.checkpoint import LoadedHead, load_head
from jetflow_core.rounds import (
    Finished,
    HeadRound,
    RoundDrafter,
    RoundRequest,
    RoundRunner,
    RunnerSettings,
    round_ops_for,
    row_bytes,
)
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import DecoderStack, layer_ops_for, load_stack


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A prompt with what transformers' greedy generate wrote."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a part works; goes to other processes."""

    settings: EngineLosslessSettings
    target: str
    head: str
    cases: tuple[Case, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A request: a case, and how much of its answer is asked for."""

    case: Case
    limit: int

    @property
    def wanted(self) -> tuple[int, ...]:
        """What must come."""
        return self.case.answer[: self.limit]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Models:
    """A loaded target with its head."""

    stack: DecoderStack
    layers: str
    """Name of what runs its layers."""
    head: LoadedHead

    @classmethod
    def load(cls, place: Place, dtype: torch.dtype) -> Models:
        """Loads both; float32 products are exact from here on.

        Raises:
            ValueError: something cannot be loaded or does not fit; named.
        """
        exact_products()
        if place.settings.threads is not None:
            torch.set_num_threads(place.settings.threads)
        device = torch.device(place.settings.device)
        head = load_head(place.head, dtype=dtype, device=device)
        layers = layer_ops_for(device)
        longest = max(len(case.prompt) for case in place.cases) + place.settings.max_new_tokens
        stack = load_stack(
            place.target, taps=head.config.target_layer_ids, device=device, dtype=dtype,
            context=longest, ops=layers.ops,
        )  # fmt: skip
        return cls(stack=stack, layers=layers.name, head=head)

    @property
    def plain(self) -> DecoderStack:
        """The same weights without taps."""
        stack = self.stack
        return DecoderStack(
            stack.shape, stack.weights, stack.rope, ops=stack.ops, eos_token_ids=stack.eos_token_ids
        )

    def drafter(self, name: str, cases: Sequence[Case], *, depth: int = 15) -> RoundDrafter:
        """The head, or one that knows what these cases' answers are."""
        if name == "head":
            return HeadRound.fitted(self.head, self.stack, round_ops_for(self.stack.device).ops)
        return ScriptedRounds(
            {case.prompt: case.answer for case in cases}, name,
            vocab_size=self.stack.vocab_size, device=self.stack.device, depth=depth,
        )  # fmt: skip


def exact_products() -> None:
    """float32 products without TF32, in this process."""
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.fp32_precision = "ieee"


def made_runner(
    stack: DecoderStack,
    drafter: RoundDrafter,
    budgets: ChosenBudget | WatchedAuto,
    settings: EngineLosslessSettings,
    *,
    pages: int,
    slots: int,
) -> RoundRunner:
    """A runner with so many pages."""
    sizes = RunnerSettings(
        memory=pages * settings.page * row_bytes(stack, drafter),
        slots=slots,
        page=settings.page,
        prefill_rows=settings.prefill_rows,
        # All prompts are read side by side, so that all of them decode at about the same time.
        prompt_rows=slots * settings.prefill_rows,
    )
    return RoundRunner(stack, drafter, sizes, budgets=budgets)


def scratch_of(drafter: RoundDrafter, most: int) -> int:
    """Rows that a round may write behind the committed ones."""
    return max(most, drafter.scratch_rows)


def decoded(runner: RoundRunner, stack: DecoderStack, asked: Sequence[Asked]) -> list[Finished]:
    """Greedy answers, decoded together.

    Raises:
        RuntimeError: pages are lost or still held behind the last answer.
    """
    found = runner.generate([
        RoundRequest.of(
            each.case.prompt,
            SamplingParams(max_new_tokens=each.limit),
            eos_ids=stack.eos_token_ids,
            vocab_size=stack.vocab_size,
        )
        for each in asked
    ])  # fmt: skip
    all_pages_free(runner)
    return found


def all_pages_free(runner: RoundRunner) -> None:
    """Raises RuntimeError if a page is lost or still held."""
    runner.tables.check()
    if runner.tables.num_free != runner.pages:
        raise RuntimeError(f"{runner.pages - runner.tables.num_free} pages are still held")


def used_by(runner: RoundRunner, models: Models) -> dict[str, Any]:
    """What ran a part."""
    return {
        "steps": runner.backend.name,
        "layers": models.layers,
        "programs": runner.programs.mode,
        "dtype": str(models.stack.dtype).removeprefix("torch."),
        "fp32_precision": torch.backends.cuda.matmul.fp32_precision,
    }
