"""Interpreted, or on a CUDA device: whole runs of core's engine through these operations.

A target and a head of random weights, in float32: with the operations of this package and with
those of torch every request gets the same tokens in the same rounds.
"""

from __future__ import annotations

import pytest
import torch
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.model import DraftHead
from jetflow_core.rounds import (
    HeadRound,
    LiveBatch,
    RoundBackend,
    RoundOps,
    RoundRequest,
    RoundRunner,
    RunnerSettings,
    Shares,
    Step,
    TorchRoundOps,
    row_bytes,
)
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import LayerOps, StackShape, TorchOps, random_stack
from jetflow_kernels.ops import layer_steps, round_steps

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_the_device")]

VOCABULARY, HIDDEN, TAPS, PAGE = 24, 32, (0, 1), 16
PROMPTS, NEW = ((5,), (1, 1, 7, 1)), 4
SHAPE = StackShape(
    vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=48, num_layers=2, num_heads=2,
    num_kv_heads=1, head_dim=64, max_positions=64, rope_theta=1e4, tied=True, head_norms=True,
)  # fmt: skip
HEAD = HeadConfig(
    hidden_size=HIDDEN, intermediate_size=40, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=64, vocab_size=VOCABULARY, block_size=3, num_target_layers=2, target_layer_ids=TAPS,
    mask_token_id=0, candidates=4, path_rank=2, input_bridge=True,
)  # fmt: skip


class Unequal:
    """Budgets that differ from request to request; a round without a draft, then trees."""

    most = 6

    def __init__(self) -> None:
        self._round = 0

    def share(self, batch: LiveBatch) -> Shares:
        self._round += 1
        first = self._round == 1
        rows = tuple(1 if first else self.most - 4 * index for index in batch.requests)
        return Shares(rows=rows, total=sum(rows))


def run(ops: RoundOps, layer_ops: LayerOps) -> list[Step]:
    """All steps of a greedy request and one with a temperature, with few pages."""
    stack = random_stack(SHAPE, taps=TAPS, dtype=torch.float32, ops=layer_ops, device=_device())
    torch.manual_seed(3)
    head = DraftHead(HEAD).eval().requires_grad_(False)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafter = HeadRound(
        head, stack.embed_tokens, stack.lm_head, ops=ops, layer_ops=layer_ops,
        context=stack.context_length,
    )  # fmt: skip
    settings = RunnerSettings(
        memory=4 * PAGE * row_bytes(stack, drafter), slots=2, page=PAGE, prefill_rows=8
    )
    runner = RoundRunner(
        stack, drafter, settings, budgets=Unequal(), backend=RoundBackend("these", ops)
    )
    requests = [
        RoundRequest.of(
            prompt, SamplingParams(max_new_tokens=NEW, temperature=0.8 * at, seed=at),
            eos_ids=(), vocab_size=VOCABULARY,
        )
        for at, prompt in enumerate(PROMPTS)
    ]  # fmt: skip
    return list(runner.run(requests))


def _device() -> torch.device:
    return torch.empty(0).device


def test_the_engine_answers_the_same() -> None:
    found = run(round_steps, layer_steps)
    assert found == run(TorchRoundOps(), TorchOps())
    assert sum(len(step.tokens) for step in found) == NEW * len(PROMPTS)
    # Trees of both sizes and no tree at all, with rows that were kept in both requests.
    assert {step.rows for step in found} >= {1, 2, 6}
    assert {step.request for step in found if step.accepted} == {0, 1}
