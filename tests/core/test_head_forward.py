"""The draft head against a forward written apart from it, token by token and head by head."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.head.checkpoint import load_head
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.head.model import DraftHead
from torch import Tensor

Heads = Callable[..., DraftHead]
Matrices = tuple[Tensor, Tensor]
ROOT = 5


def scaled(x: Tensor) -> Tensor:
    """Rows divided by their root mean square."""
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def turned(x: Tensor, position: int) -> Tensor:
    half = x.shape[-1] // 2
    angles = [position / 1e4 ** (2 * i / x.shape[-1]) for i in range(half)]
    cos = torch.tensor([math.cos(a) for a in angles] * 2, dtype=x.dtype)
    sin = torch.tensor([math.sin(a) for a in angles] * 2, dtype=x.dtype)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def block_rows(w: dict[str, Tensor], config: HeadConfig, embedding: Tensor) -> Tensor:
    """What enters the first layer: the root's embedding, then masks, each with its offset."""
    token = config.mask_token_id
    mask = w["mask_embedding"] if token is None else embedding[token]
    rows = [embedding[ROOT], *[mask] * (config.block_size - 1)]
    offsets = w.get("depth_offsets", torch.zeros(config.block_size, 1, dtype=mask.dtype))
    return torch.stack([row + offset for row, offset in zip(rows, offsets, strict=True)])


def fused(w: dict[str, Tensor], config: HeadConfig, features: Tensor) -> Tensor:
    taps = features.split(config.hidden_size, dim=-1)
    if config.normalize_taps:
        taps = tuple(scaled(tap) for tap in taps)
    return scaled(torch.cat(taps, -1) @ w["fc.weight"].T) * w["hidden_norm.weight"]


def independent_forward(
    w: dict[str, Tensor], config: HeadConfig, features: Tensor, matrices: Matrices
) -> Tensor:
    """Logits of depths 1 to max_depth, from the published description."""
    embedding, lm_head = matrices
    context = fused(w, config, features)
    x = block_rows(w, config, embedding)
    for i in range(config.num_layers):
        part = {n.removeprefix(f"layers.{i}."): t for n, t in w.items() if f"layers.{i}." in n}
        inside = scaled(x) * part["input_layernorm.weight"]
        rows = torch.cat([context, inside])
        keys = (rows @ part["self_attn.k_proj.weight"].T).view(-1, 2, 10)
        keys = scaled(keys) * part["self_attn.k_norm.weight"]
        keys = torch.stack([turned(k, p) for p, k in enumerate(keys)])
        values = (rows @ part["self_attn.v_proj.weight"].T).view(-1, 2, 10)
        queries = (inside @ part["self_attn.q_proj.weight"].T).view(-1, 4, 10)
        queries = scaled(queries) * part["self_attn.q_norm.weight"]
        attended = []
        for j in range(len(x)):
            seen = len(context) + (j + 1 if config.causal else len(x))
            q = turned(queries[j], len(context) + j)
            outs = []
            for h in range(4):
                weights = torch.softmax(keys[:seen, h // 2] @ q[h] / math.sqrt(10), 0)
                outs.append(weights @ values[:seen, h // 2])
            attended.append(torch.cat(outs))
        x = x + torch.stack(attended) @ part["self_attn.o_proj.weight"].T
        inside = scaled(x) * part["post_attention_layernorm.weight"]
        gate = inside @ part["mlp.gate_proj.weight"].T
        up = inside @ part["mlp.up_proj.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ part["mlp.down_proj.weight"].T
    logits = (scaled(x) * w["norm.weight"]) @ lm_head.T
    return logits if config.draft_shift else logits[1:]


def observed(drafter: HeadDrafter, features: Tensor, *sizes: int) -> HeadDrafter:
    """The drafter after it has seen ``features`` in runs of the given sizes."""
    drafter.begin(0, [1] * (len(features) + 1))
    for rows in features.split(list(sizes)):
        drafter.observe(0, [1] * len(rows), rows)
    return drafter


def assert_best(drafter: HeadDrafter, expected: Tensor) -> None:
    """The draft holds the best candidates of these log-probabilities at each depth, in order."""
    found = drafter.propose([0], [ROOT], drafter.max_depth)[0]
    best = expected.topk(16, dim=-1)
    assert found.tokens.tolist() == best.indices.tolist()
    torch.testing.assert_close(
        torch.from_numpy(found.log_probs[:, 0].copy()), best.values, rtol=0, atol=2e-6
    )


@pytest.mark.parametrize("causal", [True, False])
def test_published_checkpoint_gives_the_logits_of_an_independent_forward(
    causal: bool,
    published_config: dict[str, Any],
    published_tensors: dict[str, Tensor],
    published_folder: Callable[..., Path],
    target_matrices: Matrices,
) -> None:
    published_config["dflash_config"]["causal_head"] = causal
    folder = published_folder(published_config, published_tensors)
    head = load_head(folder, dtype=torch.float64).head
    features = torch.randn(9, head.config.feature_size, dtype=torch.float64)
    wide = {name: tensor.double() for name, tensor in published_tensors.items()}
    expected = independent_forward(wide, head.config, features, target_matrices)
    drafter = HeadDrafter(head, *target_matrices, num_slots=1, capacity=64)
    assert_best(observed(drafter, features, 4, 1, 4), expected.log_softmax(-1))


OPTIONS: dict[str, dict[str, Any]] = {
    "shift": {"draft_shift": True},
    "offsets": {"depth_offset_rows": 6},
    "normalised taps": {"normalize_taps": True},
    "learned mask": {"learned_mask": True, "mask_token_id": None},
    "all": {"draft_shift": True, "depth_offset_rows": 6, "normalize_taps": True,
            "learned_mask": True, "mask_token_id": None},
    "all, bidirectional": {"draft_shift": True, "depth_offset_rows": 6, "normalize_taps": True,
                           "learned_mask": True, "mask_token_id": None, "causal": False},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_means_what_the_config_says(
    name: str, new_head: Heads, target_matrices: Matrices
) -> None:
    head, plain = new_head(**OPTIONS[name]), new_head()
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(7, head.config.feature_size, generator=generator, dtype=torch.float64)
    # Taps of unequal size, so that their norms matter.
    features[:, head.config.hidden_size :] *= 5.0
    expected, without = (
        independent_forward(dict(each.state_dict()), each.config, features, target_matrices)
        for each in (head, plain)
    )
    assert expected.shape == (head.config.max_depth, head.config.vocab_size)
    assert (expected[:5] - without).abs().max() > 0.1, "the option changes nothing here"
    drafter = HeadDrafter(head, *target_matrices, num_slots=1, capacity=64)
    assert_best(observed(drafter, features, 7), expected.log_softmax(-1))


@pytest.mark.parametrize("shift", [False, True])
def test_the_path_term_is_exact_at_depth_one_and_acts_by_parent_below(
    shift: bool, new_head: Heads, target_matrices: Matrices
) -> None:
    head = new_head(path_rank=6, draft_shift=shift)
    w = dict(head.state_dict())
    features = torch.randn(7, head.config.feature_size, dtype=torch.float64)
    logits = independent_forward(w, head.config, features, target_matrices)
    embedding = target_matrices[0]

    def bias(parent: int) -> Tensor:
        inner = scaled(scaled(embedding[parent]) @ w["path.inner.weight"].T)
        return inner @ w["path.out.weight"].T

    drafter = HeadDrafter(head, *target_matrices, num_slots=1, capacity=64)
    found = observed(drafter, features, 7).propose([0], [ROOT], 5)[0]
    first = (logits[0] + bias(ROOT)).log_softmax(-1).topk(16)
    assert found.tokens[0].tolist() == first.indices.tolist()
    assert found.tokens[0].tolist() != logits[0].topk(16).indices.tolist()
    for parent in range(16):
        row = torch.from_numpy(found.log_probs[0, parent].copy())
        torch.testing.assert_close(row, first.values, rtol=0, atol=2e-6)
    for depth in range(1, 5):
        base = logits[depth].log_softmax(-1)
        chosen = base.topk(16).indices
        assert found.tokens[depth].tolist() == chosen.tolist()
        rest = 1 - base[chosen].exp().sum()
        for parent, token in enumerate(found.tokens[depth - 1].tolist()):
            weights = (base[chosen] + bias(token)[chosen]).exp()
            expected = (weights / (weights.sum() + rest)).log()
            row = torch.from_numpy(found.log_probs[depth, parent].copy())
            torch.testing.assert_close(row, expected, rtol=0, atol=5e-6)


def test_five_rounds_of_observing_are_one(new_head: Heads, target_matrices: Matrices) -> None:
    """Every layer's cache grows by what each round commits, from an empty context on."""
    head = new_head()
    generator = torch.Generator().manual_seed(4)
    sizes = (0, 3, 1, 6, 2)
    shape = (sum(sizes), head.config.feature_size)
    features = torch.randn(shape, generator=generator, dtype=torch.float64)
    growing = HeadDrafter(head, *target_matrices, num_slots=1, capacity=64)
    growing.begin(0, [1])
    for done, size in zip((0, 0, 3, 4, 10), sizes, strict=True):
        growing.observe(0, [1] * size, features[done : done + size])
        seen = features[: done + size]
        expected = independent_forward(
            dict(head.state_dict()), head.config, seen, target_matrices
        ).log_softmax(-1)
        assert_best(growing, expected)
        fresh = HeadDrafter(head, *target_matrices, num_slots=1, capacity=64)
        one = growing.propose([0], [ROOT], 5)[0]
        two = observed(fresh, seen, len(seen)).propose([0], [ROOT], 5)[0]
        assert one.tokens.tolist() == two.tokens.tolist()
        torch.testing.assert_close(
            torch.from_numpy(one.log_probs.copy()), torch.from_numpy(two.log_probs.copy()),
            rtol=0, atol=1e-6,
        )  # fmt: skip
