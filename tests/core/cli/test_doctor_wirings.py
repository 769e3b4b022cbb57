"""The doctor finds taps in another order and another mask token, and says what it cannot tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jetflow_core.doctor import examine as examine_module
from jetflow_core.doctor.examine import examine, write_texts
from jetflow_core.doctor.replay import TappedText
from jetflow_core.doctor.verdict import Agreement, Evidence, Verdict, judge
from jetflow_core.doctor.wirings import right_wiring, wrong_wirings
from jetflow_core.engine import Engine
from jetflow_core.head.checkpoint import HeadInfo, LoadedHead
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.context import PaddedContext
from jetflow_core.head.model import DraftHead
from jetflow_core.target import Target
from torch import Tensor
from torch.nn import functional as F

MakeConfig = Callable[..., HeadConfig]
_TEXTS = ("Count to ten.", "Why is it so?", "Name a town.", "Say hello.", "2 and 3", "Yes or no",
          "Who are you", "[x] * 3", "def f(a):")  # fmt: skip
_NEW_TOKENS = 24
_TAPS, _MASK = (0, 1, 2, 3), 100
# Wirings that were tried on every text before the orders of taps and the masks came in.
_FORMERLY_TRIED = 8


@dataclass
class World:
    """A target, and a head that knows by heart what it writes."""

    target: Target
    head: DraftHead
    prompts: list[tuple[int, ...]]

    def examine(self, **changes: Any) -> Evidence:
        """Evidence on the head under a config that lies about ``changes``."""
        head = DraftHead(replace(self.head.config, **changes))
        head.load_state_dict(self.head.state_dict())
        loaded = LoadedHead(head.eval().requires_grad_(False), HeadInfo(), Path("head"))
        return examine(self.target, loaded, self.prompts, new_tokens=_NEW_TOKENS)


def _loss(head: DraftHead, target: Target, text: TappedText) -> Tensor:
    depth, known = head.config.max_depth, text.roots.stop
    roots, columns = torch.tensor(text.roots), torch.arange(known)
    context = head.context_keys_values(head.fuse(text.features(_TAPS)[None, :known]), columns[None])
    block = head.block_input(torch.tensor(text.tokens)[roots], target.embed_tokens, depth)
    count, slots = block.shape[:2]
    seen = (columns < roots[:, None])[:, None, None].expand(-1, -1, slots, -1)
    own = head.block_mask(slots, roots.device).expand(count, 1, -1, -1)
    wide = [(k.expand(count, -1, -1, -1), v.expand(count, -1, -1, -1)) for k, v in context]
    attended = PaddedContext(wide, torch.cat([seen, own], dim=-1))
    hidden = head.run_block(block, roots[:, None] + torch.arange(slots), attended)
    logits = F.linear(head.depth_rows(hidden, depth), target.lm_head)
    return F.cross_entropy(logits.flatten(0, 1), text.truth(depth).flatten(), ignore_index=-1)


def _read_differences(head: DraftHead) -> None:
    """Lets the fusion see how the taps differ and nothing else.

    Layers of a random target are nearly alike: a head that sums them does not mind their order.
    """
    with torch.no_grad():
        by_tap = head.fc.weight.unflatten(1, (len(_TAPS), -1))
        by_tap -= by_tap.mean(1, keepdim=True)
    head.fc.requires_grad_(False)


@pytest.fixture(scope="module")
def world(tiny_folder: Path, tiny_head_config: MakeConfig) -> Iterator[World]:
    target = Target.load(tiny_folder, taps=_TAPS, dtype=torch.float32)
    prompts = [Engine(target, None).encode(text) for text in _TEXTS]
    texts = write_texts(target, prompts, _NEW_TOKENS)
    torch.manual_seed(0)
    head = DraftHead(tiny_head_config(target_layer_ids=_TAPS, mask_token_id=_MASK, block_size=5))
    _read_differences(head)
    optimiser = torch.optim.Adam([p for p in head.parameters() if p.requires_grad], lr=4e-3)
    for step in range(450):
        loss = _loss(head, target, texts[step % len(texts)])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with pytest.MonkeyPatch.context() as patch:
        # The same texts every time, as the target would write them.
        patch.setattr(examine_module, "write_texts", lambda *arguments: texts)
        yield World(target, head.eval().requires_grad_(False), prompts)


@pytest.mark.slow
def test_the_right_wiring_costs_no_more_than_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in texts that the head drafts, of which each takes the same time."""
    replayed: list[int] = []
    replay = examine_module.replay_best

    def counting(*arguments: Any) -> Tensor:
        replayed.append(1)
        return replay(*arguments)

    monkeypatch.setattr(examine_module, "replay_best", counting)
    evidence = world.examine()
    assert evidence.deviation == 0.0
    assert judge(evidence).kind == "ok"
    assert len(evidence.wrong) > 2 * _FORMERLY_TRIED
    tried = {len(wrong.hits) for wrong in evidence.wrong}
    assert 3 in tried, "no wiring was given up after the first texts"
    assert len(replayed) <= (1 + _FORMERLY_TRIED) * len(_TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "cure"),
    [
        ({"target_layer_ids": (1, 0, 2, 3)}, "taps 1 and 2 swapped"),
        ({"target_layer_ids": (0, 1, 3, 2)}, "taps 3 and 4 swapped"),
        ({"target_layer_ids": (1, 2, 3, 0)}, "taps rotated by 3"),
        ({"target_layer_ids": (3, 0, 1, 2)}, "taps rotated by 1"),
        ({"mask_token_id": _MASK - 1}, f"token {_MASK} as the mask"),
    ],
)
def test_the_right_order_and_mask_are_found_and_named(
    world: World, changes: dict[str, Any], cure: str
) -> None:
    """Without any acceptance stored."""
    evidence = world.examine(**changes)
    verdict = judge(evidence)
    assert verdict.kind == "wiring fault", (evidence.right.share, verdict)
    assert f"should be wrong: {cure} " in verdict.reasons[0]


@pytest.mark.parametrize("taps", [(1,), (1, 2), (0, 1, 3), (3, 1, 0, 2), (1, 8, 14, 21, 27)])
def test_all_neighbours_and_rotations_are_tried_once(
    taps: tuple[int, ...], tiny_head_config: MakeConfig
) -> None:
    config = tiny_head_config(target_layer_ids=taps, num_target_layers=30)
    tried = [w.taps for w in wrong_wirings(config) if w.taps != taps]
    assert len(tried) == len(set(tried))
    assert {taps[by:] + taps[:by] for by in range(1, len(taps))} <= set(tried)
    for i in range(len(taps) - 1):
        swapped = list(taps)
        swapped[i], swapped[i + 1] = taps[i + 1], taps[i]
        assert tuple(swapped) in tried
    assert len({w.name for w in wrong_wirings(config)}) == len(wrong_wirings(config))


def test_other_masks_are_tried_where_one_is_borrowed(tiny_head_config: MakeConfig) -> None:
    def masks(special: tuple[int, ...] = (), **changes: Any) -> list[int]:
        found = wrong_wirings(tiny_head_config(**changes), special)
        return [w.mask_token for w in found if w.mask_token is not None]

    assert masks(mask_token_id=50) == [49, 51, 127, 0]
    # 128 is outside of the vocabulary: a tokenizer as large as the target's matrix.
    assert masks((2, 2, 50, 128), mask_token_id=50) == [2, 49, 51, 127, 0]
    assert masks(mask_token_id=127) == [126, 0]
    assert masks((2,), mask_token_id=None, learned_mask=True) == []
    assert right_wiring(tiny_head_config()).mask_token is None


def _agreement(shares: list[float], texts: int = 6, seed: int = 0) -> Agreement:
    luck = np.random.default_rng(seed).random((6, 60, len(shares)))
    hits = luck < np.array(shares)
    known = np.ones((60, len(shares)), dtype=bool)
    return Agreement("some wiring", tuple(hits[:texts]), (known,) * texts)


def _verdict(right: list[float], stored: tuple[float, ...] = ()) -> Verdict:
    return judge(
        Evidence(
            right=_agreement(right),
            wrong=(_agreement([0.02] * 4, texts=3, seed=1),),
            stored=stored,
            deviation=0.0,
            rounding=0.01,
            copying=1.05,
        )
    )


# Best tokens of depths 1 to 4 that give 1.36, 1.56, 1.63 and 1.72 tokens a round.
_LOW = [[0.28, 0.2, 0.1, 0.05], [0.4, 0.3, 0.25, 0.1], [0.43, 0.35, 0.25, 0.1], [0.5, 0.35, 0.2, 0]]


@pytest.mark.parametrize("shares", _LOW)
def test_low_agreement_alone_is_unclear(shares: list[float]) -> None:
    verdict = _verdict(shares)
    assert verdict.kind == "unclear"
    assert "no acceptance stored: cannot tell weak from wrongly wired" in verdict.reasons


@pytest.mark.parametrize("shares", _LOW)
def test_low_agreement_that_is_as_stored_is_ok(shares: list[float]) -> None:
    assert _verdict(shares, stored=tuple(shares)).kind == "ok"


def test_two_tokens_a_round_speak_for_themselves() -> None:
    assert _verdict([0.75, 0.6, 0.5, 0.4]).kind == "ok"


def test_two_taps_swapped_in_the_demonstration_head_were_once_ok() -> None:
    """Its shares, had the right order not been tried: 0.404 where 0.643 is stored."""
    verdict = _verdict([0.6, 0.38, 0.23, 0.1], stored=(0.7626, 0.6451, 0.5208, 0.4165))
    assert verdict.kind == "wiring fault"
    assert "far below the one stored" in verdict.reasons[0]


def test_a_weak_head_without_a_record_may_be_a_wrong_one() -> None:
    verdict = _verdict([0.1, 0.05, 0.0, 0.0])
    assert verdict.kind == "weak head"
    assert "would look the same" in verdict.reasons[1]


def test_the_luckiest_of_many_wirings_is_no_cure() -> None:
    """An untrained head that hits nothing as configured, and a little under a wrong wiring."""
    nothing, little = _agreement([0.0] * 4), _agreement([0.1, 0.08, 0.05, 0.0], seed=1)
    verdict = judge(
        Evidence(
            right=nothing, wrong=(little,), stored=(), deviation=0.0, rounding=0.01, copying=1.05
        )
    )
    assert verdict.kind == "weak head"


def test_wirings_are_compared_on_the_texts_that_both_drafted() -> None:
    right = _agreement([0.5] * 4)
    few = Agreement("few", right.hits[:3], right.known[:3])
    assert [gain.tolist() for gain in few.gains_over(right)] == [[0.0] * 60] * 3
    assert few.gain_over(right).shape == (180,)
