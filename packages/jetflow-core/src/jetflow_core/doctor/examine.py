"""Examines a head on a target: lets the target write, and the head draft what it wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from jetflow_core.bench.builtin import SETS
from jetflow_core.doctor.replay import TappedText, depth_of_all, drafter_best, replay_best
from jetflow_core.doctor.verdict import COMPARED_DEPTHS, Agreement, Evidence
from jetflow_core.doctor.wirings import Wiring, layers_of, right_wiring, wrong_wirings
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.fit import check_fit
from jetflow_core.head.checkpoint import LoadedHead, load_head
from jetflow_core.head.drafter import HeadDrafter
from jetflow_core.head.model import DraftHead
from jetflow_core.reports.prompt_lookup import prompt_lookup_rounds
from jetflow_core.sampling import SamplingParams
from jetflow_core.session import CachedSession
from jetflow_core.target import Target

Report = Callable[[str], None]

PROMPTS = tuple(text for texts in zip(*SETS.values(), strict=True) for text in texts)[:9]
"""Three of each subject, one after the other."""
NEW_TOKENS = 40
_DEPTHS = 8
# The drafter runs root by root, and a drafter that is fed wrongly shows it on any text.
_DRAFTED_TEXTS = 3
# Wirings are many and mostly far worse. The first texts, one of each subject, tell which are not;
# only those are tried on all texts.
_SCREENED_TEXTS = 3
_FAR_WORSE = -0.02
_LIKELY_MASKS = ("mask_token_id", "pad_token_id", "unk_token_id", "bos_token_id", "eos_token_id")
# Best tokens of 16-bit logits are often tied, and the deeper, the oftener.
_WIDE = (torch.float32, torch.float64)
_WIDE_DEVIATION, _NARROW_DEVIATION = 0.01, 0.15


def open_pair(
    source: str | Path, head_path: str | Path, *, device: str, dtype: torch.dtype
) -> tuple[Target, LoadedHead]:
    """A target tapped at every layer that a wiring may read, and the head that fits it.

    Raises:
        ValueError: one of them cannot be loaded.
        HeadMismatch: the head was made for another target.
    """
    head = load_head(head_path, dtype=dtype, device=device)
    wirings = [right_wiring(head.config), *wrong_wirings(head.config)]
    target = Target.load(source, taps=layers_of(wirings), device=device, dtype=dtype)
    check_fit(head, target)
    return target, head


def examine(
    target: Target,
    head: LoadedHead,
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int = NEW_TOKENS,
    report: Report = lambda line: None,
) -> Evidence:
    """Evidence on ``head`` from the target's own greedy answers to ``prompts``.

    Args:
        target: tapped as ``open_pair`` does.
        head: fits the target.
        prompts: token ids.
        new_tokens: most tokens of an answer.
        report: told of each step.

    Raises:
        ValueError: no answer is long enough to draft anything.
    """
    report("the target writes")
    texts = write_texts(target, prompts, new_tokens)
    report("the head drafts, as configured")
    right, deepest = right_wiring(head.config), min(_DEPTHS, depth_of_all(head.head))
    compared = min(COMPARED_DEPTHS, deepest)
    best = [_replay(head, target, text, right, deepest) for text in texts]
    first = [row[:, :compared] for row in best[:_DRAFTED_TEXTS]]
    deviation = _deviation(head, target, texts[:_DRAFTED_TEXTS], first)
    agreed = _agreement(right.name, texts, best)
    wrong = []
    for wiring in wrong_wirings(head.config, _special_tokens(target)):
        report(f"the head drafts, {wiring.name}")
        wrong.append(_try(head, target, texts, wiring, compared, agreed))
    return Evidence(
        right=agreed,
        wrong=tuple(wrong),
        stored=head.info.top1_by_depth,
        deviation=deviation,
        rounding=_WIDE_DEVIATION if target.dtype in _WIDE else _NARROW_DEVIATION,
        copying=_copying(texts),
    )


def write_texts(
    target: Target, prompts: Sequence[Sequence[int]], new_tokens: int
) -> list[TappedText]:
    """The target's greedy answers, plainly decoded, with the outputs of its tapped layers.

    Raises:
        ValueError: no answer has two tokens.
    """
    room = target.context_length - new_tokens
    fitting = [list(prompt)[-room:] for prompt in prompts] if room > 0 else []
    answers = Engine(target, None).generate_batch(
        fitting, SamplingParams(max_new_tokens=new_tokens), TreeOptions(budget=1)
    )
    texts = [_tapped(target, a.prompt, a.tokens) for a in answers if len(a.tokens) > 1]
    if not texts:
        raise ValueError(
            f"the target's answers to {len(prompts)} prompts are too short to draft anything"
        )
    return texts


def _tapped(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> TappedText:
    tokens = (*prompt, *answer)
    session = CachedSession(target, capacity=len(tokens), max_rows=1)
    features = session.prefill(0, tokens).features
    by_layer = features.unflatten(-1, (len(target.taps), target.hidden_size)).unbind(1)
    layers = dict(zip(target.taps, by_layer, strict=True))
    return TappedText(tokens=tokens, first_root=len(prompt) - 1, layers=layers)


def _special_tokens(target: Target) -> tuple[int, ...]:
    """Tokens that a head borrows as its mask: special ones, and the first that no text uses."""
    if target.tokenizer_source is None:
        return ()
    special = [getattr(target.tokenizer, name, None) for name in _LIKELY_MASKS]
    return (*(token for token in special if token is not None), len(target.tokenizer))


def _try(
    head: LoadedHead,
    target: Target,
    texts: Sequence[TappedText],
    wiring: Wiring,
    depth: int,
    right: Agreement,
) -> Agreement:
    """Agreement under ``wiring``: on the first texts only where it is far worse than ``right``."""
    found = [_replay(head, target, text, wiring, depth) for text in texts[:_SCREENED_TEXTS]]
    agreed = _agreement(wiring.name, texts[:_SCREENED_TEXTS], found)
    if agreed.gain_over(right).mean() < _FAR_WORSE:
        return agreed
    found += [_replay(head, target, text, wiring, depth) for text in texts[_SCREENED_TEXTS:]]
    return _agreement(wiring.name, texts, found)


def _replay(
    head: LoadedHead, target: Target, text: TappedText, wiring: Wiring, depth: int
) -> Tensor:
    return replay_best(head.head, target.embed_tokens, target.lm_head, text, wiring, depth)


def _deviation(
    head: LoadedHead, target: Target, texts: Sequence[TappedText], replayed: Sequence[Tensor]
) -> float:
    drafter = HeadDrafter(
        _without_pool(head.head),
        target.embed_tokens,
        target.lm_head,
        num_slots=1,
        capacity=max(len(text.tokens) for text in texts),
    )
    differing = []
    for text, best in zip(texts, replayed, strict=True):
        drafted = drafter_best(drafter, text, head.config.target_layer_ids, best.shape[1])
        offered = drafted >= 0
        differing.append((drafted != best)[offered])
    return float(torch.cat(differing).float().mean())


def _without_pool(head: DraftHead) -> DraftHead:
    """The same head with each depth's own best tokens first, as in the replay.

    A pool puts first what the drafted paths make likeliest. In a head that has learnt little that
    is often another token, which says nothing of how the head is wired.
    """
    same = copy(head)
    same.config = replace(head.config, candidate_pool=0)
    return same


def _agreement(name: str, texts: Sequence[TappedText], found: Sequence[Tensor]) -> Agreement:
    truths = [text.truth(best.shape[1]) for text, best in zip(texts, found, strict=True)]
    pairs = list(zip(found, truths, strict=True))
    return Agreement(
        name=name,
        hits=tuple((best == truth).numpy() for best, truth in pairs),
        known=tuple((truth >= 0).numpy() for truth in truths),
    )


def _copying(texts: Sequence[TappedText]) -> float:
    tokens = rounds = 0
    for text in texts:
        prompt, answer = text.tokens[: text.first_root + 1], text.tokens[text.first_root + 1 :]
        tokens += len(answer)
        rounds += prompt_lookup_rounds(prompt, answer)
    return tokens / rounds
