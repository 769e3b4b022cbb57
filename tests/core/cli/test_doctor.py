"""The doctor on a tiny target with a head that was trained on its texts for a few seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.commands import visit
from jetflow_core.doctor.examine import PROMPTS, examine, open_pair, write_texts
from jetflow_core.doctor.replay import TappedText, drafter_best, replay_best
from jetflow_core.doctor.verdict import Evidence, judge
from jetflow_core.doctor.wirings import layers_of, right_wiring, wrong_wirings
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.head.checkpoint import HeadInfo, LoadedHead, save_head
from jetflow_core.head.config import HeadConfig
from jetflow_core.head.context import PaddedContext
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.head.model import DraftHead
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target
from torch import Tensor
from torch.nn import functional as F

Call = Callable[..., tuple[int, str, str]]
_TEXTS = ("Count to ten.", "Why is it so?", "Name a town.", "Say hello.", "2 and 3", "Yes or no")
_NEW_TOKENS = 24


@dataclass
class Trained:
    """A head that knows the target's texts by heart."""

    target: Target
    head: DraftHead
    prompts: list[tuple[int, ...]]
    texts: list[TappedText]

    def loaded(self, config: HeadConfig | None = None, info: HeadInfo | None = None) -> LoadedHead:
        """The same weights, under the config they were trained with or another."""
        head = DraftHead(config or self.head.config)
        head.load_state_dict(self.head.state_dict())
        return LoadedHead(head.eval().requires_grad_(False), info or HeadInfo(), Path("head"))

    def retapped(self, taps: tuple[int, ...]) -> Target:
        """The same target with other taps."""
        source = self.target.tokenizer_source
        assert source is not None
        return Target.load(source, taps=taps, dtype=torch.float32)

    def examine(self, loaded: LoadedHead) -> Evidence:
        """Evidence on the texts that the head knows."""
        return examine(self.target, loaded, self.prompts, new_tokens=_NEW_TOKENS)

    def verdict(self, loaded: LoadedHead) -> Any:
        return judge(self.examine(loaded))


def _logits(head: DraftHead, target: Target, text: TappedText, roots: Tensor) -> Tensor:
    """Drafts ``[R, depth, vocab]`` after the tokens at indices ``roots``."""
    config, count, known = head.config, len(roots), text.roots.stop
    features = text.features(config.target_layer_ids)[:known]
    context = head.context_keys_values(head.fuse(features[None]), torch.arange(known)[None])
    block = head.block_input(
        torch.tensor(text.tokens)[roots], target.embed_tokens, config.max_depth
    )
    slots = block.shape[1]
    seen = (torch.arange(known) < roots[:, None])[:, None, None].expand(-1, -1, slots, -1)
    own = head.block_mask(slots, roots.device).expand(count, 1, -1, -1)
    wide = [(k.expand(count, -1, -1, -1), v.expand(count, -1, -1, -1)) for k, v in context]
    positions = roots[:, None] + torch.arange(slots)
    hidden = head.run_block(block, positions, PaddedContext(wide, torch.cat([seen, own], dim=-1)))
    return F.linear(head.depth_rows(hidden, config.max_depth), target.lm_head)


def _train(head: DraftHead, target: Target, texts: list[TappedText], steps: int) -> None:
    optimiser = torch.optim.Adam(head.parameters(), lr=4e-3)
    for step in range(steps):
        text = texts[step % len(texts)]
        logits = _logits(head, target, text, torch.tensor(text.roots))
        truth = text.truth(head.config.max_depth)
        loss = F.cross_entropy(logits.flatten(0, 1), truth.flatten(), ignore_index=-1)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@pytest.fixture(scope="module")
def trained(tiny_folder: Path, tiny_head_config: Callable[..., Any]) -> Trained:
    torch.manual_seed(0)
    head = DraftHead(tiny_head_config(target_layer_ids=(1, 2)))
    wirings = [right_wiring(head.config), *wrong_wirings(head.config)]
    target = Target.load(tiny_folder, taps=layers_of(wirings), dtype=torch.float32)
    prompts = [Engine(target, None).encode(text) for text in _TEXTS]
    texts = write_texts(target, prompts, _NEW_TOKENS)
    _train(head, target, texts, 480)
    return Trained(target, head.eval().requires_grad_(False), prompts, texts)


@pytest.fixture(scope="module")
def fresh(tiny_head_config: Callable[..., Any]) -> DraftHead:
    """A head of the same shape that was never trained."""
    torch.manual_seed(5)
    return DraftHead(tiny_head_config(target_layer_ids=(1, 2))).eval().requires_grad_(False)


def test_a_pool_s_choice_among_candidates_is_no_wiring_fault(
    tiny_folder: Path, tiny_head_config: Callable[..., Any]
) -> None:
    """In a head that has learnt nothing a pool puts other tokens first, which is no fault."""
    torch.manual_seed(7)
    head = DraftHead(
        tiny_head_config(target_layer_ids=(1, 2), path_rank=4, path_context=True, candidate_pool=32)
    )
    assert head.path is not None
    torch.nn.init.normal_(head.path.out.weight)
    wirings = [right_wiring(head.config), *wrong_wirings(head.config)]
    target = Target.load(tiny_folder, taps=layers_of(wirings), dtype=torch.float32)
    prompts = [Engine(target, None).encode(text) for text in _TEXTS[:2]]
    loaded = LoadedHead(head.eval().requires_grad_(False), HeadInfo(), Path("head"))
    evidence = examine(target, loaded, prompts, new_tokens=_NEW_TOKENS)
    assert evidence.deviation == 0.0
    text = write_texts(target, prompts, _NEW_TOKENS)[0]
    drafter = HeadDrafter(
        head, target.embed_tokens, target.lm_head, num_slots=1, capacity=len(text.tokens)
    )
    pooled = drafter_best(drafter, text, (1, 2), 3)
    own = replay_best(head, target.embed_tokens, target.lm_head, text, right_wiring(head.config), 3)
    assert ((pooled != own) & (pooled >= 0)).any(), "the pool chose as the head alone would"
    assert loaded.config.candidate_pool == 32


def test_the_right_wiring_is_ok(trained: Trained) -> None:
    evidence = trained.examine(trained.loaded())
    assert evidence.deviation == 0.0
    assert evidence.right.share > 0.8
    assert judge(evidence).kind == "ok"
    stored = HeadInfo(top1_by_depth=evidence.right.by_depth)
    assert trained.verdict(trained.loaded(info=stored)).kind == "ok"


@pytest.mark.parametrize(
    ("changes", "cure"),
    [
        ({"target_layer_ids": (0, 1)}, "taps one layer higher"),
        ({"target_layer_ids": (2, 3)}, "taps one layer lower"),
        ({"target_layer_ids": (2, 1)}, "taps in reverse order"),
        ({"draft_shift": True}, "depth 1 from slot 1"),
    ],
)
def test_a_config_that_lies_is_a_wiring_fault(
    trained: Trained, changes: dict[str, Any], cure: str
) -> None:
    """The target is tapped again, as ``open_pair`` would for a head with this config."""
    config = replace(trained.head.config, **changes)
    wirings = [right_wiring(config), *wrong_wirings(config)]
    other = replace(trained, target=trained.retapped(layers_of(wirings)))
    verdict = other.verdict(trained.loaded(config))
    assert verdict.kind == "wiring fault"
    assert cure in verdict.reasons[0]


@pytest.mark.parametrize("fault", ["rows late", "root lost"])
def test_a_drafter_that_is_fed_wrongly_is_a_wiring_fault(
    trained: Trained, fresh: DraftHead, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Seen with any head, also one that agrees with nothing."""
    observe, propose = HeadDrafter.observe, HeadDrafter.propose

    def late(self: HeadDrafter, slot: int, tokens: Any, features: Tensor) -> None:
        observe(self, slot, tokens, features.roll(1, dims=0) if len(features) > 1 else features * 0)

    def lost(self: HeadDrafter, slots: Any, roots: Any, depth: int) -> Any:
        return propose(self, slots, [127] * len(roots), depth)

    if fault == "rows late":
        monkeypatch.setattr(HeadDrafter, "observe", late)
    else:
        monkeypatch.setattr(HeadDrafter, "propose", lost)
    verdict = trained.verdict(LoadedHead(fresh, HeadInfo(), Path("head")))
    assert verdict.kind == "wiring fault"
    assert "drafter differs" in verdict.reasons[0]


def test_an_untrained_head_is_weak_unless_it_was_better_once(
    trained: Trained, fresh: DraftHead
) -> None:
    weak = trained.verdict(LoadedHead(fresh, HeadInfo(), Path("head")))
    assert weak.kind == "weak head"
    info = HeadInfo(top1_by_depth=(0.8, 0.7, 0.6))
    fault = trained.verdict(LoadedHead(fresh, info, Path("head")))
    assert fault.kind == "wiring fault"


def test_the_replay_is_the_head_and_the_drafter(trained: Trained) -> None:
    target, head, text = trained.target, trained.head, trained.texts[1]
    depth = head.config.max_depth
    found = replay_best(
        head, target.embed_tokens, target.lm_head, text, right_wiring(head.config), depth
    )
    by_root = [
        _logits(head, target, text, torch.tensor([root]))[0].argmax(-1) for root in text.roots
    ]
    assert torch.equal(found, torch.stack(by_root))
    drafter = HeadDrafter(head, target.embed_tokens, target.lm_head, num_slots=1, capacity=256)
    drafted = drafter_best(drafter, text, head.config.target_layer_ids, depth)
    assert torch.equal(found, drafted)


def test_a_path_term_enters_at_depth_1(
    trained: Trained, tiny_head_config: Callable[..., Any]
) -> None:
    torch.manual_seed(6)
    head = DraftHead(tiny_head_config(target_layer_ids=(1, 2), path_rank=4))
    assert head.path is not None
    torch.nn.init.normal_(head.path.out.weight)
    head.eval().requires_grad_(False)
    target, text = trained.target, trained.texts[0]
    found = replay_best(
        head, target.embed_tokens, target.lm_head, text, right_wiring(head.config), 4
    )
    drafter = HeadDrafter(head, target.embed_tokens, target.lm_head, num_slots=1, capacity=256)
    assert torch.equal(found, drafter_best(drafter, text, head.config.target_layer_ids, 4))


def test_features_are_those_of_decoding(trained: Trained) -> None:
    """Rows tapped in one prefill equal the rows that plain decoding observes one by one."""
    seen: list[Tensor] = []

    class Watcher:
        max_depth = 0

        def begin(self, slot: int, prompt: Any) -> None: ...

        def observe(self, slot: int, tokens: Any, features: Tensor) -> None:
            seen.append(features)

        def propose(self, slots: Any, roots: Any, depth: int) -> Any: ...

    text = trained.texts[0]
    prompt = text.tokens[: text.first_root + 1]
    Engine(trained.target, None).generate_batch(
        [prompt], SamplingParams(max_new_tokens=20), TreeOptions(budget=1), drafter=Watcher()
    )
    rows = torch.cat(seen)
    torch.testing.assert_close(rows, text.features(trained.target.taps)[: len(rows)])


def test_short_answers_and_full_contexts(trained: Trained) -> None:
    with pytest.raises(ValueError, match="too short to draft"):
        examine(trained.target, trained.loaded(), trained.prompts, new_tokens=1)
    long = [[5] * 250]
    texts = write_texts(trained.target, long, 48)
    assert len(texts[0].tokens) <= trained.target.context_length


def test_the_command_tells_and_its_exit_code_too(
    trained: Trained, tiny_folder: Path, tmp_path: Path, jetflow: Call,
    make_head: Callable[..., Path], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The built-in prompts are other texts than those it was trained on: no verdict is ok there."""
    monkeypatch.setattr(visit, "PROMPTS", PROMPTS[:3])
    models = ("--target", tiny_folder, "--device", "cpu", "--dtype", "float32", "--head")
    head = save_head(tmp_path / "head", trained.head, HeadInfo(target="tiny"))
    code, out, err = jetflow("doctor", *models, head, "--json")
    assert err == ""
    payload = json.loads(out)
    assert code == (0 if payload["verdict"] == "ok" else 1)
    assert payload["as_configured"]["roots"] > 80
    assert payload["provenance"]["packages"]["jetflow-core"]
    weak, out, _ = jetflow("doctor", *models, make_head())
    assert weak == 1
    for words in ("sizes fit", "as configured", "root masked", "by copying", "verdict: weak head"):
        assert words in out


def test_the_command_takes_a_fitting_pair_only(
    tiny_folder: Path, make_head: Callable[..., Path]
) -> None:
    target, head = open_pair(tiny_folder, make_head(), device="cpu", dtype=torch.float32)
    assert target.taps == (0, 1, 2, 3)
    assert head.config.target_layer_ids == (0, 1, 3)
