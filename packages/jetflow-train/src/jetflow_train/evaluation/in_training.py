"""Evaluation while a head learns: tau on answers that were stored before training began."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from jetflow_core.head.model import DraftHead

from jetflow_train.evaluation.answers import Answers, answer_prompts
from jetflow_train.evaluation.offline import evaluate
from jetflow_train.evaluation.policies import CHAIN, OWN, exact_policies
from jetflow_train.evaluation.sets import EvalSets
from jetflow_train.sinks.base import MetricSink
from jetflow_train.target import FrozenTarget

KIND = "evaluation"
"""What the ``kind`` of these lines is in a run's metrics; lines of training have none."""
BUDGETS = (16, 64)


class HeadEvaluation(Protocol):
    """What a training loop calls now and then, on the leading process alone."""

    def __call__(self, head: DraftHead, step: int) -> dict[str, Any]:
        """Figures of ``head`` after ``step`` steps."""
        ...


class StoredAnswerEvaluation:
    """Greedy tau by budget on stored answers, also written to the run's metrics.

    Args:
        target: the frozen target that wrote the answers.
        answers: its greedy answers by the name of their set.
        sink: takes the figures.
        budgets: rows of a tree, root included.

    Raises:
        ValueError: no answers, some that were sampled, or a budget below 1.
    """

    def __init__(
        self,
        target: FrozenTarget,
        answers: Mapping[str, Answers],
        sink: MetricSink,
        budgets: Sequence[int] = BUDGETS,
    ) -> None:
        if not answers:
            raise ValueError("evaluation in training needs at least one set of answers")
        for name, some in answers.items():
            if some.temperature != 0:
                raise ValueError(f"the answers of {name} were sampled, greedy ones are needed")
        if not budgets or min(budgets) < 1:
            raise ValueError(f"budgets {list(budgets)} are out of range: each at least 1")
        self._target, self._answers, self._sink = target, dict(answers), sink
        self._budgets = tuple(budgets)

    @staticmethod
    def prepare(
        target: FrozenTarget,
        eval_sets: EvalSets,
        sink: MetricSink,
        budgets: Sequence[int] = BUDGETS,
    ) -> StoredAnswerEvaluation:
        """Lets the target answer the prompts of ``eval_sets``, once, greedily."""
        answers = {name: answer_prompts(target, prompts) for name, prompts in eval_sets.items()}
        return StoredAnswerEvaluation(target, answers, sink, budgets)

    def __call__(self, head: DraftHead, step: int) -> dict[str, Any]:
        """Figures of ``head`` after ``step`` steps: ``tau`` by set and policy, and the seconds.

        Raises:
            ValueError: the head's logits are not finite.
        """
        began = time.monotonic()
        policies = {OWN: exact_policies(self._budgets, head.config.max_depth)}
        tau = {}
        with torch.no_grad():
            for name, answers in self._answers.items():
                found = evaluate(self._target, head, answers, policies)
                tau[name] = {
                    CHAIN if each.policy.kind == CHAIN else str(each.policy.budget): each.tau
                    for each in found.walked
                }
        entry = {"kind": KIND, "seconds": round(time.monotonic() - began, 2), "tau": tau}
        self._sink.write(step, entry)
        return {"step": step, **entry}
