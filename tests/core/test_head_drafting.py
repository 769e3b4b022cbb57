"""Drafting with a head: what a draft depends on, and where it ends."""

from typing import Any

import pytest
import torch
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.context import OwnContexts
from jetflow_core.head.drafter import HeadDrafter, NonFiniteDraft
from jetflow_core.head.model import DraftHead
from jetflow_core.head.path import conditional_table

HIDDEN, VOCAB, TAPS, BLOCK = 32, 50, (0, 2), 6


def _config(**changes: Any) -> HeadConfig:
    fields: dict[str, Any] = {
        "hidden_size": HIDDEN, "intermediate_size": 48, "num_layers": 3, "num_heads": 4,
        "num_kv_heads": 2, "head_dim": 10, "vocab_size": VOCAB, "block_size": BLOCK,
        "num_target_layers": 4, "target_layer_ids": TAPS, "mask_token_id": 7, "rope_theta": 1e4,
        "max_position_embeddings": 128,
    }  # fmt: skip
    return HeadConfig(**{**fields, **changes})


def _head(config: HeadConfig, seed: int = 0) -> DraftHead:
    torch.manual_seed(seed)
    head = DraftHead(config).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return head.eval().requires_grad_(False)


def _matrices(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (VOCAB, HIDDEN)
    return tuple(torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))


def _drafter(head: DraftHead, slots: int = 1, capacity: int = 64) -> HeadDrafter:
    embedding, lm_head = _matrices()
    drafter = HeadDrafter(head, embedding, lm_head, num_slots=slots, capacity=capacity)
    generator = torch.Generator().manual_seed(9)
    for slot in range(slots):
        count = 5 + 4 * slot
        drafter.begin(slot, [1] * (count + 1))
        rows = torch.randn(count, 2 * HIDDEN, generator=generator, dtype=torch.float64)
        drafter.observe(slot, [1] * count, rows)
    return drafter


def test_zero_path_term_changes_no_candidate_score() -> None:
    plain, own = _head(_config()), _head(_config(path_rank=4))
    own.load_state_dict(plain.state_dict(), strict=False)
    assert own.path is not None
    own.path.out.weight.zero_()
    one, two = (_drafter(head) for head in (plain, own))
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
def test_a_batch_drafts_what_each_slot_drafts_alone(path_rank: int) -> None:
    head = _head(_config(path_rank=path_rank))
    together = _drafter(head, slots=3).propose([0, 1, 2], [5, 6, 7], 5)
    for slot in range(3):
        alone = _drafter(head, slots=3).propose([slot], [5 + slot], 5)[0]
        assert together[slot].tokens.tolist() == alone.tokens.tolist()
        torch.testing.assert_close(
            torch.from_numpy(together[slot].log_probs.copy()),
            torch.from_numpy(alone.log_probs.copy()), rtol=0, atol=1e-6,
        )  # fmt: skip


def test_a_causal_heads_depth_does_not_change_earlier_depths() -> None:
    deep = _drafter(_head(_config())).propose([0], [5], 5)[0]
    shallow = _drafter(_head(_config())).propose([0], [5], 2)[0]
    assert shallow.tokens.tolist() == deep.tokens[:2].tolist()


@pytest.mark.parametrize("first_round", [True, False])
def test_a_slot_is_never_seen_by_earlier_slots(first_round: bool) -> None:
    """Every layer keeps its in-block mask, also before anything is cached."""
    head = _head(_config())
    context = 0 if first_round else 7
    fused = torch.randn(1, context, HIDDEN, dtype=torch.float64)
    positions = torch.arange(context)[None]
    cached = [[(k[0], v[0])] for k, v in head.context_keys_values(fused, positions)]
    around = OwnContexts(cached, head.block_mask(BLOCK, fused.device))
    block = torch.randn(1, BLOCK, HIDDEN, dtype=torch.float64)
    changed = block.clone()
    changed[0, 3] += 1.0
    positions = torch.arange(context, context + BLOCK)[None]
    one, two = (head.run_block(b, positions, around)[0] for b in (block, changed))
    assert torch.equal(one[:3], two[:3])
    assert bool(((one[3:] - two[3:]).abs().amax(-1) > 1e-6).all())


def test_every_depth_depends_on_the_root_token() -> None:
    one = _drafter(_head(_config())).propose([0], [5], 5)[0]
    two = _drafter(_head(_config())).propose([0], [6], 5)[0]
    for depth in range(5):
        assert one.log_probs[depth].tolist() != two.log_probs[depth].tolist(), depth


def test_drafting_ends_at_the_heads_own_position_limit() -> None:
    drafter = _drafter(_head(_config(max_position_embeddings=9)))
    assert drafter.depth_left(0) == 3
    assert drafter.propose([0], [5], 5)[0].depth == 3
    for _ in range(6):
        drafter.observe(0, [1], torch.zeros(1, 2 * HIDDEN, dtype=torch.float64))
    assert drafter.propose([0], [5], 5)[0].depth == 0
    assert drafter.context_length(0) == 11


def test_a_deeper_draft_than_the_head_gives_is_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match=r"depth 6 .*0\.\.5"):
        _drafter(_head(_config())).propose([0], [5], 6)


def test_a_reused_slot_remembers_nothing() -> None:
    head = _head(_config())
    drafter = _drafter(head)
    drafter.propose([0], [5], 5)
    rows = torch.randn(2, 2 * HIDDEN, dtype=torch.float64)
    drafter.begin(0, [1, 2, 3])
    drafter.observe(0, [1, 2], rows)
    embedding, lm_head = _matrices()
    fresh = HeadDrafter(head, embedding, lm_head, num_slots=1, capacity=64)
    fresh.begin(0, [1, 2, 3])
    fresh.observe(0, [1, 2], rows)
    a, b = drafter.propose([0], [5], 5)[0], fresh.propose([0], [5], 5)[0]
    assert a.tokens.tolist() == b.tokens.tolist()
    assert a.log_probs.tolist() == b.log_probs.tolist()


def test_non_finite_logits_name_the_slot() -> None:
    head = _head(_config())
    head.norm.weight[:] = float("nan")
    with pytest.raises(NonFiniteDraft, match="slots"):
        _drafter(head).propose([0], [5], 5)


def test_matrices_of_another_target_are_refused() -> None:
    embedding, lm_head = _matrices()
    with pytest.raises(ValueError, match="50 x 32"):
        HeadDrafter(_head(_config()), embedding[:40], lm_head, num_slots=1, capacity=8)
