"""The operations are told of every product that can be chosen, before a round runs it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.model import DraftHead
from jetflow_core.rounds import (
    FixedBudget,
    HeadRound,
    RoundRequest,
    RoundRunner,
    RunnerSettings,
    TorchRoundOps,
    row_bytes,
)
from jetflow_core.rounds.head_products import prepare_head
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import StackShape, TorchOps, random_stack
from torch import Tensor

SHAPE = StackShape(
    vocab_size=24, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=2, num_kv_heads=1,
    head_dim=16, max_positions=64, rope_theta=1e4, tied=True, head_norms=True,
)  # fmt: skip
HEAD = HeadConfig(
    hidden_size=32, intermediate_size=40, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16,
    vocab_size=24, block_size=3, num_target_layers=2, target_layer_ids=(0, 1), mask_token_id=0,
    candidates=4,
)  # fmt: skip
Told = set[tuple[int, int, bool]]


class Listening(TorchOps):
    """Keeps what it is told, and which products ran without having been told of."""

    def __init__(self) -> None:
        self.told: Told = set()
        self.calls: list[tuple[int, ...]] = []
        self.ran: Told = set()
        self.untold: Told = set()
        self._within = False

    def prepare(
        self, rows: Sequence[int], weights: Sequence[Tensor], gated: Sequence[Tensor] = ()
    ) -> None:
        self.calls.append(tuple(rows))
        for is_gated, matrices in ((False, weights), (True, gated)):
            self.told |= {(r, w.data_ptr(), is_gated) for r in rows for w in matrices}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not self._within:
            self._run(x, weight, gated=False)
        return super().linear(x, weight, bias)

    def gate_up_silu(self, x: Tensor, weight: Tensor) -> Tensor:
        self._run(x, weight, gated=True)
        self._within = True
        found = super().gate_up_silu(x, weight)
        self._within = False
        return found

    def _run(self, x: Tensor, weight: Tensor, *, gated: bool) -> None:
        product = (x.shape[0], weight.data_ptr(), gated)
        self.ran.add(product)
        if product not in self.told:
            self.untold.add(product)


def test_what_a_round_runs_was_told() -> None:
    ops = Listening()
    stack = random_stack(SHAPE, taps=(0, 1), dtype=torch.float32, ops=ops)
    head = DraftHead(HEAD).eval().requires_grad_(False)
    drafter = HeadRound(
        head, stack.embed_tokens, stack.lm_head, ops=TorchRoundOps(), layer_ops=ops, context=64
    )
    settings = RunnerSettings(memory=8 * 16 * row_bytes(stack, drafter), slots=2, page=16)
    runner = RoundRunner(stack, drafter, settings, budgets=FixedBudget(5))
    block = drafter.scratch_rows
    assert {rows for rows, _, gated in ops.told if gated} == {block, 2 * block}
    request = RoundRequest.of(
        (3, 1, 2), SamplingParams(max_new_tokens=4), eos_ids=(), vocab_size=24
    )
    runner.generate([request])
    # Prompts are read as they are: only rounds are told of.
    assert {rows for rows, _, _ in ops.untold} <= {2}
    assert {rows for rows, _, gated in ops.ran if gated} >= {block, 5}
    layers = stack.weights.layers
    matrices = [stack.lm_head, *(m for w in layers for m in (w.qkv, w.output, w.mlp.down))]
    wanted = {(5, each.data_ptr(), False) for each in matrices}
    wanted |= {(5, each.mlp.gate_up.data_ptr(), True) for each in layers}
    assert wanted <= ops.told
    assert wanted <= ops.ran
    before = len(ops.calls)
    runner.generate([request])
    stack.prepare(5)
    # The second run, of rounds of the same size, tells nothing again.
    assert len(ops.calls) == before
    assert stack.ops.products() == ()


@pytest.mark.parametrize(("slots", "wanted"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6])])
def test_a_head_is_told_of_as_many_requests_as_graphs_are_made_for(
    slots: int, wanted: list[int]
) -> None:
    ops = Listening()
    prepare_head(ops, (), torch.zeros(2, 2), torch.zeros(2, 2), block=16, depth=15, slots=slots)
    assert ops.calls == [
        tuple(16 * each for each in wanted),
        tuple(15 * each for each in wanted),
        tuple(16 * each for each in wanted),
    ]


def test_gated_products_are_the_two_operations() -> None:
    ops, x, weight = TorchOps(), torch.randn(3, 8), torch.randn(10, 8)
    wanted = ops.silu_mul(ops.linear(x, weight))
    assert torch.equal(ops.gate_up_silu(x, weight), wanted)
