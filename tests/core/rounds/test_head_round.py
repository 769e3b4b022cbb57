"""The head in a round drafts what ``HeadDrafter`` drafts, whatever the head is made of."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.head.model import DraftHead
from jetflow_core.head.scores import head_scoring
from jetflow_core.rounds import (
    CommittedRows,
    DraftInputs,
    Finished,
    HeadRound,
    RoundRunner,
    TorchRoundOps,
)
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import TorchOps
from jetflow_core.target import Target
from jetflow_tree import Candidates
from torch import Tensor

PAGE, LENGTHS = 4, (5, 9, 1, 0)
ROOTS = (5, 6, 7, 8)
TEMPERATURE = 0.35
Heads = Callable[..., DraftHead]
Matrices = tuple[Tensor, Tensor]
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "path term": {"path_rank": 4},
    "path term that reads the text": {"path_rank": 4, "path_context": True},
    "pool": {"path_rank": 4, "candidates": 4, "candidate_pool": 9},
    "bridge": {"input_bridge": True},
    "own mask and offsets": {
        "learned_mask": True, "mask_token_id": None, "depth_offset_rows": 6, "normalize_taps": True,
    },
    "shifted": {"draft_shift": True},
    "sees its whole block": {"causal": False},
    "more candidates than tokens": {"candidates": 500},
    "read more sharply": {"score_temperatures": ((0.0, 0.5), (1.0, 1.5))},
    "read as it is": {"score_temperatures": ((0.0, 0.5), (TEMPERATURE, 1.0), (1.0, 1.5))},
    "path term read more sharply": {
        "path_rank": 4, "score_temperatures": ((0.0, 0.5), (1.0, 1.5)),
    },
}  # fmt: skip


def _features(head: DraftHead) -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    size = head.config.feature_size
    return [torch.randn(n, size, generator=generator, dtype=torch.float64) for n in LENGTHS]


def _expected(head: DraftHead, matrices: Matrices, depth: int) -> list[Candidates]:
    drafter = HeadDrafter(head, *matrices, num_slots=len(LENGTHS), capacity=1000)
    for slot, rows in enumerate(_features(head)):
        drafter.begin(slot, [1] * (len(rows) + 1))
        drafter.observe(slot, [1] * len(rows), rows)
    found = drafter.propose(range(len(LENGTHS)), ROOTS, depth)
    scoring = head_scoring(head.config, TEMPERATURE)
    return found if scoring is None else [scoring(each) for each in found]


def _in_rounds(
    head: DraftHead, matrices: Matrices, depth: int | None, steps: Sequence[int]
) -> tuple[HeadRound, DraftInputs]:
    """A drafter that took its contexts in pieces, with NaN wherever nothing was written."""
    drafter = HeadRound(
        head, *matrices, ops=TorchRoundOps(), layer_ops=TorchOps(), context=128, depth=depth
    )
    requests = len(LENGTHS)
    width = -(-(max(LENGTHS) + drafter.scratch_rows) // PAGE)
    drafter.allocate(pages=requests * width, page=PAGE, slots=requests)
    drafter.pools.fill_(torch.nan)
    for slot in range(requests):
        drafter.begin(slot, [1], SamplingParams(temperature=TEMPERATURE, seed=0))
    generator = torch.Generator().manual_seed(4)
    table = torch.randperm(requests * width, generator=generator).view(requests, width).int()
    slots, given, starts = torch.arange(requests), _features(head), [0] * requests
    for step in steps:
        rows = torch.zeros(requests, step, head.config.feature_size, dtype=torch.float64)
        counts = [min(step, n - start) for n, start in zip(LENGTHS, starts, strict=True)]
        for slot, count in enumerate(counts):
            rows[slot, :count] = given[slot][starts[slot] : starts[slot] + count]
        drafter.absorb(CommittedRows(
            slots=slots, page_table=table, starts=torch.tensor(starts).int(),
            counts=torch.tensor(counts).int(), features=rows,
        ))  # fmt: skip
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    assert starts == list(LENGTHS)
    live = torch.ones(requests, dtype=torch.bool)
    return drafter, DraftInputs(
        slots=slots, page_table=table, prefix_len=torch.tensor(LENGTHS).int(),
        roots=torch.tensor(ROOTS).int(), live=live, depth_left=torch.full((requests,), 99).int(),
    )  # fmt: skip


def _assert_equal(found: tuple[Tensor, Tensor], wanted: Sequence[Candidates]) -> None:
    tokens, scores = found
    for slot, each in enumerate(wanted):
        deep = each.depth
        assert tokens[slot, :deep].tolist() == each.tokens.tolist()
        assert bool((scores[slot, deep:] == -torch.inf).all())
        if deep:
            torch.testing.assert_close(
                scores[slot, :deep].double(), torch.from_numpy(each.log_probs.copy()),
                rtol=1e-6, atol=3e-6,
            )  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_every_kind_of_head_drafts_the_same(
    changes: dict[str, Any], new_head: Heads, target_matrices: Matrices
) -> None:
    head = new_head(**changes)
    depth = head.config.max_depth
    wanted = _expected(head, target_matrices, depth)
    drafter, inputs = _in_rounds(head, target_matrices, None, (4, 1, 5))
    assert drafter.depth == depth
    _assert_equal(drafter.propose(inputs), wanted)
    # A draft leaves nothing behind that the next one could feel.
    _assert_equal(drafter.propose(inputs), wanted)


@pytest.mark.parametrize("causal", [True, False])
def test_a_shorter_draft(causal: bool, new_head: Heads, target_matrices: Matrices) -> None:
    head = new_head(causal=causal)
    drafter, inputs = _in_rounds(head, target_matrices, 2, (9,))
    _assert_equal(drafter.propose(inputs), _expected(head, target_matrices, 2))


def test_past_the_heads_own_positions_nothing_is_drafted(
    new_head: Heads, target_matrices: Matrices
) -> None:
    head = new_head(max_position_embeddings=9)
    drafter, inputs = _in_rounds(head, target_matrices, None, (9,))
    wanted = _expected(head, target_matrices, 5)
    assert [each.depth for each in wanted] == [3, 0, 5, 5]
    _assert_equal(drafter.propose(inputs), wanted)


def test_a_padding_request_writes_nothing_and_changes_nobody(
    new_head: Heads, target_matrices: Matrices
) -> None:
    drafter, inputs = _in_rounds(new_head(), target_matrices, None, (9,))
    tokens, scores = drafter.propose(inputs)
    before = drafter.pools.clone()
    live = torch.tensor([True, False, True, True])
    stale = DraftInputs(
        slots=inputs.slots, page_table=inputs.page_table[[0, 0, 2, 3]], live=live,
        prefix_len=inputs.prefix_len * live, roots=inputs.roots, depth_left=inputs.depth_left,
    )  # fmt: skip
    again = drafter.propose(stale)
    assert torch.equal(drafter.pools.nan_to_num(), before.nan_to_num())
    for found, wanted in zip(again, (tokens, scores), strict=True):
        assert torch.equal(found[live], wanted[live])


def test_depths_that_a_head_has_not(new_head: Heads, target_matrices: Matrices) -> None:
    for depth in (0, 6):
        with pytest.raises(ValueError, match=f"depth {depth} is out of range: this head drafts"):
            _in_rounds(new_head(), target_matrices, depth, (9,))


@pytest.mark.parametrize("path_rank", [4, pytest.param(0, marks=pytest.mark.slow)])
def test_with_a_head_the_text_and_the_rounds_are_those_of_the_other_engine(
    tiny_target: Target, head_for_tiny_target: Callable[..., Any], path_rank: int,
    head_round: Callable[..., HeadRound], runner: Callable[..., RoundRunner],
    answer: Callable[..., list[Finished]],
) -> None:  # fmt: skip
    """The whole vocabulary is on offer, so that something is accepted."""
    loaded = head_for_tiny_target(path_rank=path_rank, candidates=128)
    prompts = [(3, 1, 4, 1, 5, 9), (2, 6), (5,)]
    params = SamplingParams(max_new_tokens=8)
    wanted = Engine(tiny_target, loaded).generate_batch(prompts, params, TreeOptions(budget=200))
    made = runner(head_round(loaded), budget=200, prefill_rows=3)
    found = answer(made, prompts, params)
    assert [tuple(each.tokens) for each in found] == [each.tokens for each in wanted]
    assert [each.rounds for each in found] == [len(each.rounds) for each in wanted]
    assert sum(each.rounds for each in found) < 24
