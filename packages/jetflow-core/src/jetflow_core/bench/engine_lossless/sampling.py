"""Many rounds at temperature 1 on a small random target: guard words, memory, and seeds.

Requests come, go and are preempted the whole time. At the end the first and the last of them are
decoded again in plain rounds: the same seeds must have given the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from jetflow_core.bench.engine.settings import PLAIN
from jetflow_core.bench.engine.sides import ChosenBudget
from jetflow_core.bench.engine.subjects import random_head
from jetflow_core.bench.engine_lossless.guards import GUARD_BYTES, Guards, bytes_in_use
from jetflow_core.bench.engine_lossless.place import all_pages_free, exact_products
from jetflow_core.head.config import HeadConfig
from jetflow_core.rounds import (
    Finished,
    HeadRound,
    NoDraft,
    RoundDrafter,
    RoundRequest,
    RoundRunner,
    RunnerSettings,
    round_ops_for,
    row_bytes,
)
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import DecoderStack, StackShape, layer_ops_for, random_stack

# Few tokens, so that random trees of half of them keep something in every other round.
SHAPE = StackShape(
    vocab_size=128, hidden_size=256, intermediate_size=512, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=64, max_positions=1024, rope_theta=1e4, head_norms=True,
)  # fmt: skip
_DEPTH, _CANDIDATES, _PATH_RANK = 7, 32, 8
_SLOTS, _REQUESTS, _ROWS = 8, 12, 64
_PROMPT, _ANSWER = 48, 96
_PAGE, _PREFILL = 16, 128
_PAGES_EACH = 7
"""Pages a slot: a whole request takes up to 13, so that not all slots can be full at once."""
_MARK_FROM = 100
_MARKS = 40


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Memory in use after some rounds, nobody being in any slot."""

    rounds: int
    bytes: int
    graphs: int
    """Captured programs; each takes memory of its own, once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Requests decoded together."""

    number: int

    def requests(self, vocab_size: int) -> list[RoundRequest]:
        draw = np.random.default_rng(self.number)
        lengths = draw.integers(1, _PROMPT + 1, _REQUESTS)
        counts = draw.integers(_ANSWER // 2, _ANSWER + 1, _REQUESTS)
        return [
            RoundRequest.of(
                draw.integers(vocab_size, size=length).tolist(),
                SamplingParams(
                    max_new_tokens=int(count), temperature=1.0, seed=self.number * _REQUESTS + at
                ),
                eos_ids=(),
                vocab_size=vocab_size,
            )
            for at, (length, count) in enumerate(zip(lengths, counts, strict=True))
        ]


def sampling_cell(
    device: torch.device,
    dtype: torch.dtype,
    rounds: int,
    advance: Callable[[int], None] = lambda _count: None,
) -> dict[str, Any]:
    """So many rounds.

    Args:
        device: where they run.
        dtype: of target and head.
        rounds: of the whole batch, at least.
        advance: told how many were done, after each batch.

    Returns:
        Counts; guard words that were written; memory by rounds; and how many of the repeated
        requests have the tokens of plain rounds.
    """
    exact_products()
    layers = layer_ops_for(device)
    stack = random_stack(
        SHAPE, taps=(0, 1), device=device, dtype=dtype, context=_PROMPT + _ANSWER, ops=layers.ops
    )
    drafter = HeadRound.fitted(
        random_head(_head_config(), stack, seed=0), stack, round_ops_for(device).ops
    )
    plain = _runner(stack, NoDraft(), ChosenBudget(PLAIN), _SLOTS * _most_pages(1))
    guards, budgets = Guards(device), ChosenBudget(_ROWS)
    with guards:
        runner = _runner(stack, drafter, budgets, _SLOTS * _PAGES_EACH)
    run = _Run(stack, runner, budgets)
    run.warm_up()
    run.until(rounds, advance)
    again = {number: run.kept[number] for number in (0, run.batches - 1)}
    same = {
        number: _same(plain.generate(_Batch(number=number).requests(SHAPE.vocab_size)), tokens)
        for number, tokens in again.items()
    }
    broken = guards.broken()
    steady, growth = memory_growth(run.marks)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "rounds": run.rounds,
        "requests": run.batches * _REQUESTS,
        "tokens": run.tokens,
        "tau": run.tokens / run.request_rounds,
        "preemptions": run.preemptions,
        "drafts_refused": run.refused,
        "guards": {
            "tensors": guards.count, "bytes": guards.guarded_bytes, "guard_bytes": GUARD_BYTES,
            "broken": broken,
        },
        "memory": {
            "steady": steady,
            "growth_bytes": growth,
            "marks": [[mark.rounds, mark.bytes, mark.graphs] for mark in run.marks],
        },
        "same_seed": {
            "requests": len(same) * _REQUESTS, "equal_to_plain_rounds": sum(same.values()),
        },
        "used": {
            "steps": runner.backend.name, "layers": layers.name, "programs": runner.programs.mode,
        },
    }  # fmt: skip


def memory_growth(marks: list[Mark]) -> tuple[bool, int]:
    """Whether memory stayed as it was, and how much was added in all since the first mark.

    A round of a size that was not met before is captured and adds once; between marks with the
    same number of captured programs nothing may be added.
    """
    first = {mark.graphs: mark.bytes for mark in reversed(marks)}
    steady = all(mark.bytes <= first[mark.graphs] for mark in marks)
    return steady, max(mark.bytes for mark in marks) - marks[0].bytes


class _Run:
    """Batches one after the other on one runner, and what was seen of them."""

    def __init__(self, stack: DecoderStack, runner: RoundRunner, budgets: ChosenBudget) -> None:
        self._stack, self._runner, self._budgets = stack, runner, budgets
        self.rounds = self.batches = self.tokens = self.request_rounds = 0
        self.preemptions = self.refused = 0
        self.marks: list[Mark] = []
        self.kept: dict[int, list[list[int]]] = {}

    def warm_up(self) -> None:
        """Every number of requests at once, so that most sizes are ready."""
        some = _Batch(number=0)
        for count in range(1, _SLOTS + 1):
            self._runner.generate(some.requests(self._stack.vocab_size)[:count])

    def until(self, rounds: int, advance: Callable[[int], None]) -> None:
        """Batches until so many rounds are done."""
        every = max(rounds // _MARKS, 1)
        while self.rounds < rounds:
            self._budgets.restart(_ROWS)
            found = self._runner.generate(
                _Batch(number=self.batches).requests(self._stack.vocab_size)
            )
            all_pages_free(self._runner)
            done = len(self._budgets.rounds)
            self._take(found, done)
            advance(done)
            due = self.marks[-1].rounds + every if self.marks else _MARK_FROM
            if self.rounds >= min(due, rounds):
                self._mark()

    def _take(self, found: list[Finished], rounds: int) -> None:
        # The first and the newest are enough; more would themselves be memory that grows.
        newest = [list(each.tokens) for each in found]
        self.kept = {0: self.kept.get(0, newest), self.batches: newest}
        self.rounds += rounds
        self.batches += 1
        self.tokens += sum(map(len, newest))
        self.request_rounds += sum(each.rounds for each in found)
        self.preemptions += sum(each.preemptions for each in found)
        self.refused += sum(each.drafts_refused for each in found)

    def _mark(self) -> None:
        programs = self._runner.programs
        self.marks.append(
            Mark(
                rounds=self.rounds,
                bytes=bytes_in_use(self._stack.device),
                graphs=len(programs.runs) if programs.mode == "graphs" else 0,
            )
        )


def _same(found: list[Finished], tokens: list[list[int]]) -> int:
    return sum(list(one.tokens) == other for one, other in zip(found, tokens, strict=True))


def _most_pages(scratch: int) -> int:
    return -(-(_PROMPT + _ANSWER + scratch) // _PAGE) + 1


def _runner(
    stack: DecoderStack, drafter: RoundDrafter, budgets: ChosenBudget, pages: int
) -> RoundRunner:
    sizes = RunnerSettings(
        memory=pages * _PAGE * row_bytes(stack, drafter), slots=_SLOTS, page=_PAGE,
        prefill_rows=_PREFILL, prompt_rows=_PREFILL,
    )  # fmt: skip
    return RoundRunner(stack, drafter, sizes, budgets=budgets)


def _head_config() -> HeadConfig:
    return HeadConfig(
        hidden_size=SHAPE.hidden_size, intermediate_size=SHAPE.intermediate_size, num_layers=1,
        num_heads=SHAPE.num_heads, num_kv_heads=SHAPE.num_kv_heads, head_dim=SHAPE.head_dim,
        vocab_size=SHAPE.vocab_size, block_size=_DEPTH + 1, num_target_layers=SHAPE.num_layers,
        target_layer_ids=(0, 1), mask_token_id=0, max_position_embeddings=SHAPE.max_positions,
        candidates=_CANDIDATES, path_rank=_PATH_RANK,
    )  # fmt: skip
