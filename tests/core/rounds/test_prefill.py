"""Prompts in one pass of packed rows: each as if it were read alone, in passes of few sizes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_core.rounds import (
    Finished,
    FixedBudget,
    HeadRound,
    RoundRunner,
    RunnerSettings,
    row_bytes,
)
from jetflow_core.rounds.prefill import PromptSize
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import DecoderStack

PROMPTS = [tuple((7 * i + j) % 128 for j in range(n)) for i, n in enumerate((3, 33, 1, 17, 9))]
Answer = Callable[..., list[Finished]]
Make = Callable[..., RoundRunner]


@pytest.fixture
def make(
    tiny_stack: DecoderStack, head_round: Callable[..., HeadRound],
    head_for_tiny_target: Callable[..., Any],
) -> Make:  # fmt: skip
    loaded = head_for_tiny_target(num_layers=1, candidates=40, input_bridge=True)

    def made(*, slots: int, longest: int, rows: int, pages: int = 300) -> RoundRunner:
        drafter = head_round(loaded)
        settings = RunnerSettings(
            memory=pages * 4 * row_bytes(tiny_stack, drafter), slots=slots, page=4,
            prefill_rows=longest, prompt_rows=rows,
        )  # fmt: skip
        return RoundRunner(tiny_stack, drafter, settings, budgets=FixedBudget(8))

    return made


def _passes(made: RoundRunner) -> list[PromptSize]:
    runs = made.programs.runs
    return [key[1] for key, times in runs.items() for _ in range(times) if key[0] == "prompt"]


@pytest.mark.parametrize(
    ("slots", "longest", "rows", "pages"),
    [(6, 8, 20, 300), pytest.param(6, 8, 16, 19, marks=pytest.mark.slow),
     pytest.param(4, 256, 1024, 300, marks=pytest.mark.slow)],
)  # fmt: skip
def test_each_prompt_is_as_if_read_alone(
    make: Make, answer: Answer, slots: int, longest: int, rows: int, pages: int
) -> None:
    """The tokens, and the rounds that they took: the head has read the same."""
    params = SamplingParams(max_new_tokens=6)
    alone = make(slots=1, longest=64, rows=64)
    wanted = [answer(alone, [prompt], params)[0] for prompt in PROMPTS]
    made = make(slots=slots, longest=longest, rows=rows, pages=pages)
    found = answer(made, PROMPTS, params)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    assert [each.rounds for each in found] == [each.rounds for each in wanted]
    passes = _passes(made)
    assert all(each.rows <= rows and each.longest <= longest for each in passes)
    assert max(each.requests for each in passes) > 1
    if pages < 300:
        assert any(each.preemptions for each in found)
    elif rows == 20:
        assert sum(each.rows for each in passes) == sum(len(prompt) - 1 for prompt in PROMPTS)
        assert len(passes) <= 8


def test_padding_requests_and_rows_write_nothing(make: Make, answer: Answer) -> None:
    """A pass of the sizes of a GPU fills the pages as one of the exact sizes does."""
    params = SamplingParams(max_new_tokens=1)
    exact, padded = (make(slots=5, longest=64, rows=64) for _ in range(2))
    programs: Any = padded.programs
    programs.prompt_size = lambda **sizes: PromptSize(
        requests=4, rows=64, longest=64, pages=padded.tables.table.shape[1]
    )
    for made in (exact, padded):
        answer(made, [PROMPTS[0], PROMPTS[3], PROMPTS[4]], params)
    for mine, other in zip(
        (*exact._round._pools.keys, exact._drafter.pools, exact._drafter._last),
        (*padded._round._pools.keys, padded._drafter.pools, padded._drafter._last),
        strict=True,
    ):
        assert torch.allclose(mine, other, atol=1e-5)
        assert mine.any()
