"""Which sharpness of a head's scores gives the longest rounds, found on stored text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jetflow_core.head.checkpoint import load_head
from jetflow_core.head.folder import CONFIG
from jetflow_core.head.model import DraftHead
from jetflow_core.head.published import own_section
from jetflow_core.reports.files import check_output
from jetflow_tree import BestFirst, calibrated

from jetflow_train.draws import CALIBRATION, generator
from jetflow_train.evaluation.answers import Answers
from jetflow_train.evaluation.job import check_heads
from jetflow_train.evaluation.offline import evaluate
from jetflow_train.evaluation.policies import OWN, TREE, Policy
from jetflow_train.evaluation.walk import StoredText
from jetflow_train.evaluation.walkers import Walkers
from jetflow_train.files import write_json
from jetflow_train.run import open_target
from jetflow_train.shards import Corpus, load_corpus
from jetflow_train.target import FrozenTarget

TRIED = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3)
"""Temperatures of the scores that are compared."""
FEWEST_TEXTS = 16
Pairs = tuple[tuple[float, float], ...]
Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationSettings:
    """What is walked.

    Raises:
        ValueError: on construction: so few texts that no temperature can be fitted.
    """

    texts: int = 192
    """Answers of each temperature, drawn from the data."""
    budget: int = 64
    """Rows of a tree, root included."""
    max_new_tokens: int = 128
    """Tokens of an answer."""
    workers: int = 1
    """Processes that walk."""

    def __post_init__(self) -> None:
        if self.texts < FEWEST_TEXTS:
            raise ValueError(f"texts {self.texts} is out of range: at least {FEWEST_TEXTS}")


def calibrate(
    target_dir: Path,
    heads: Sequence[Path],
    data: Sequence[Path],
    settings: CalibrationSettings,
    report: Report = print,
) -> dict[Path, Pairs]:
    """Fits each head's ``score_temperatures`` and stores them; they come back by folder.

    Args:
        target_dir: folder of the target that wrote the data.
        heads: folders of heads of this package.
        data: data folders.
        settings: what is walked.
        report: takes lines of progress.

    Raises:
        ValueError: a head or the data do not fit the target, a head was made elsewhere or cannot
            be written, or no temperature has ``FEWEST_TEXTS`` answers; named, and nothing is
            written.
    """
    check_heads(heads, target_dir)
    for folder in heads:
        if not own_section(_config(folder)):
            raise ValueError(f"{folder} has no jetflow section in its {CONFIG} to store them in")
        check_output(folder / CONFIG)
    target = open_target(target_dir)
    corpus = load_corpus(data, target.fingerprint)
    found = {}
    with Walkers(settings.workers) as walkers:
        for folder in heads:
            report(f"{folder}:")
            head = load_head(folder).head.to(device=target.device, dtype=target.dtype)
            found[folder] = fit(target, head, corpus, settings, walkers, report)
    for folder, pairs in found.items():
        config = _config(folder)
        config["jetflow"]["score_temperatures"] = [list(pair) for pair in pairs]
        write_json(folder / CONFIG, config)
    return found


def fit(
    target: FrozenTarget,
    head: DraftHead,
    corpus: Corpus,
    settings: CalibrationSettings,
    walkers: Walkers,
    report: Report,
) -> Pairs:
    """What ``HeadConfig.score_temperatures`` should be, by tau of exact best-first trees.

    Each temperature of the corpus is fitted that has enough answers. See ``calibrate``.
    """
    plain, depth = _unread(head), head.config.max_depth
    policies = {OWN: [_policy(fitted, settings.budget, depth) for fitted in TRIED]}
    found = []
    for temperature in _asked(corpus):
        answers = stored_answers(corpus, temperature, settings)
        if len(answers.texts) < FEWEST_TEXTS:
            report(f"temperature {temperature:g}: {len(answers.texts)} answers are too few")
            continue
        taus = [each.tau for each in evaluate(target, plain, answers, policies, walkers).walked]
        # Of equal ones that which changes the scores least.
        best = max(range(len(TRIED)), key=lambda i: (taus[i], -abs(math.log(TRIED[i]))))
        found.append((_decimal(temperature), TRIED[best]))
        told = ", ".join(f"{t:g}: {tau:.3f}" for t, tau in zip(TRIED, taus, strict=True))
        report(f"temperature {temperature:g}: scores at {TRIED[best]:g}; tau with each: {told}")
    if not found:
        raise ValueError(f"no temperature of the data has {FEWEST_TEXTS} answers to fit on")
    return tuple(found)


def _asked(corpus: Corpus) -> list[float]:
    """Temperatures of the answers, rising; text that somebody else wrote has none."""
    asked: list[float] = np.unique(corpus.temperature[~np.isnan(corpus.temperature)]).tolist()
    return asked


def _decimal(temperature: float) -> float:
    """What was asked for: data folders keep temperatures in half precision.

    The shortest decimal that stands for the stored value, so that two of them stay apart.
    """
    return float(str(np.float16(temperature)))


def stored_answers(corpus: Corpus, temperature: float, settings: CalibrationSettings) -> Answers:
    """Answers of the corpus at ``temperature``, as evaluation walks them."""
    same = np.flatnonzero((corpus.temperature == np.float32(temperature)) & (corpus.prompt_len > 0))
    drawn = generator(CALIBRATION, 0, 0).permutation(same)[: settings.texts]
    limit = settings.max_new_tokens
    texts = []
    for number in drawn.tolist():
        prompt = int(corpus.prompt_len[number])
        tokens = corpus.sequence(number)[: prompt + limit].astype(np.int64)
        texts.append(StoredText(tokens=tokens, prompt_len=prompt, limit=limit))
    return Answers(texts=tuple(texts), temperature=temperature, cut=0)


def _unread(head: DraftHead) -> DraftHead:
    """The same weights, not copied, with scores as they are."""
    with torch.device("meta"):
        plain = DraftHead(replace(head.config, score_temperatures=()))
    plain.load_state_dict(head.state_dict(), assign=True)
    return plain.eval().requires_grad_(False)


def _policy(fitted: float, budget: int, depth: int) -> Policy:
    scoring = calibrated([fitted] * depth)
    return Policy(kind=TREE, budget=budget, builder=BestFirst(scoring=scoring))


def _config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return found
