"""Drafting with a head: what a draft depends on, and where it ends."""

from collections.abc import Callable

import pytest
import torch
from jetflow_core.head.context import OwnContexts
from jetflow_core.head.drafter import HeadDrafter, NonFiniteDraft
from jetflow_core.head.model import DraftHead
from jetflow_core.head.path import conditional_table
from torch import Tensor

BLOCK = 6
Heads = Callable[..., DraftHead]
Matrices = tuple[Tensor, Tensor]
Drafters = Callable[..., HeadDrafter]


@pytest.fixture
def make_drafter(target_matrices: Matrices) -> Drafters:
    """A drafter whose slots hold random contexts of 5, 9, 13 rows."""

    def make(head: DraftHead, slots: int = 1) -> HeadDrafter:
        drafter = HeadDrafter(head, *target_matrices, num_slots=slots, capacity=64)
        generator = torch.Generator().manual_seed(9)
        for slot in range(slots):
            count = 5 + 4 * slot
            drafter.begin(slot, [1] * (count + 1))
            size = (count, head.config.feature_size)
            rows = torch.randn(size, generator=generator, dtype=torch.float64)
            drafter.observe(slot, [1] * count, rows)
        return drafter

    return make


def test_zero_path_term_changes_no_candidate_score(new_head: Heads, make_drafter: Drafters) -> None:
    plain, own = new_head(), new_head(path_rank=4)
    own.load_state_dict(plain.state_dict(), strict=False)
    assert own.path is not None
    own.path.out.weight.zero_()
    one, two = (make_drafter(head) for head in (plain, own))
    a, b = one.propose([0], [5], 5)[0], two.propose([0], [5], 5)[0]
    assert a.tokens.tolist() == b.tokens.tolist()
    for parent in range(b.log_probs.shape[1]):
        torch.testing.assert_close(
            torch.from_numpy(b.log_probs[:, parent].copy()),
            torch.from_numpy(a.log_probs[:, 0].copy()), rtol=0, atol=1e-6,
        )  # fmt: skip


def test_candidates_and_rest_sum_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 40, generator=generator, dtype=torch.float64) * 3
    base = logits.log_softmax(-1).topk(8, -1).values
    bias = torch.randn(5, 8, 8, generator=generator, dtype=torch.float64) * 2
    table = conditional_table(base, bias)
    rest = 1 - base.exp().sum(-1)
    weights = torch.cat([(base[:, None] + bias).exp(), rest[:, None, None].expand(5, 8, 1)], -1)
    expected = (weights / weights.sum(-1, keepdim=True))[..., :8]
    torch.testing.assert_close(table.exp(), expected)
    assert bool((table <= 0).all())


@pytest.mark.parametrize("path_rank", [0, 6])
def test_a_batch_drafts_what_each_slot_drafts_alone(
    path_rank: int, new_head: Heads, make_drafter: Drafters
) -> None:
    head = new_head(path_rank=path_rank)
    together = make_drafter(head, slots=3).propose([0, 1, 2], [5, 6, 7], 5)
    for slot in range(3):
        alone = make_drafter(head, slots=3).propose([slot], [5 + slot], 5)[0]
        assert together[slot].tokens.tolist() == alone.tokens.tolist()
        torch.testing.assert_close(
            torch.from_numpy(together[slot].log_probs.copy()),
            torch.from_numpy(alone.log_probs.copy()), rtol=0, atol=1e-6,
        )  # fmt: skip


def test_a_causal_heads_depth_does_not_change_earlier_depths(
    new_head: Heads, make_drafter: Drafters
) -> None:
    deep = make_drafter(new_head()).propose([0], [5], 5)[0]
    shallow = make_drafter(new_head()).propose([0], [5], 2)[0]
    assert shallow.tokens.tolist() == deep.tokens[:2].tolist()


@pytest.mark.parametrize("first_round", [True, False])
def test_a_slot_is_never_seen_by_earlier_slots(first_round: bool, new_head: Heads) -> None:
    """Every layer keeps its in-block mask, also before anything is cached."""
    head = new_head()
    context = 0 if first_round else 7
    fused = torch.randn(1, context, head.config.hidden_size, dtype=torch.float64)
    positions = torch.arange(context)[None]
    cached = [[(k[0], v[0])] for k, v in head.context_keys_values(fused, positions)]
    around = OwnContexts(cached, head.block_mask(BLOCK, fused.device))
    block = torch.randn(1, BLOCK, head.config.hidden_size, dtype=torch.float64)
    changed = block.clone()
    changed[0, 3] += 1.0
    positions = torch.arange(context, context + BLOCK)[None]
    one, two = (head.run_block(b, positions, around)[0] for b in (block, changed))
    assert torch.equal(one[:3], two[:3])
    assert bool(((one[3:] - two[3:]).abs().amax(-1) > 1e-6).all())


def test_every_depth_depends_on_the_root_token(new_head: Heads, make_drafter: Drafters) -> None:
    one = make_drafter(new_head()).propose([0], [5], 5)[0]
    two = make_drafter(new_head()).propose([0], [6], 5)[0]
    for depth in range(5):
        assert one.log_probs[depth].tolist() != two.log_probs[depth].tolist(), depth


def test_drafting_ends_at_the_heads_own_position_limit(
    new_head: Heads, make_drafter: Drafters
) -> None:
    head = new_head(max_position_embeddings=9)
    drafter = make_drafter(head)
    assert drafter.depth_left(0) == 3
    assert drafter.propose([0], [5], 5)[0].depth == 3
    for _ in range(6):
        drafter.observe(0, [1], torch.zeros(1, head.config.feature_size, dtype=torch.float64))
    assert drafter.propose([0], [5], 5)[0].depth == 0
    assert drafter.context_length(0) == 11


def test_a_deeper_draft_than_the_head_gives_is_refused_with_both_numbers(
    new_head: Heads, make_drafter: Drafters
) -> None:
    with pytest.raises(ValueError, match=r"depth 6 .*0\.\.5"):
        make_drafter(new_head()).propose([0], [5], 6)


def test_a_reused_slot_remembers_nothing(
    new_head: Heads, make_drafter: Drafters, target_matrices: Matrices
) -> None:
    head = new_head()
    drafter = make_drafter(head)
    drafter.propose([0], [5], 5)
    rows = torch.randn(2, head.config.feature_size, dtype=torch.float64)
    drafter.begin(0, [1, 2, 3])
    drafter.observe(0, [1, 2], rows)
    fresh = HeadDrafter(head, *target_matrices, num_slots=1, capacity=64)
    fresh.begin(0, [1, 2, 3])
    fresh.observe(0, [1, 2], rows)
    a, b = drafter.propose([0], [5], 5)[0], fresh.propose([0], [5], 5)[0]
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.log_probs.tolist() == b.log_probs.tolist()


def test_non_finite_logits_name_the_slot(new_head: Heads, make_drafter: Drafters) -> None:
    head = new_head()
    head.norm.weight[:] = float("nan")
    with pytest.raises(NonFiniteDraft, match="slots"):
        make_drafter(head).propose([0], [5], 5)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e150])
def test_a_path_term_that_overflows_names_the_slot(
    new_head: Heads, make_drafter: Drafters, weight: float
) -> None:
    head = new_head(path_rank=4)
    assert head.path is not None
    for parameter in head.path.parameters():
        parameter[:] = weight
    with pytest.raises(NonFiniteDraft, match=r"path term .* \(slots \[0\]\)"):
        make_drafter(head).propose([0], [5], 5)


def test_matrices_of_another_target_are_refused(new_head: Heads, target_matrices: Matrices) -> None:
    embedding, lm_head = target_matrices
    with pytest.raises(ValueError, match="50 x 32"):
        HeadDrafter(new_head(), embedding[:40], lm_head, num_slots=1, capacity=8)
