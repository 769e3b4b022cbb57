"""Evaluation while a head learns: greedy tau on answers that were stored before training began."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jetflow_core.head.model import DraftHead

from jetflow_train.answering import told_backend
from jetflow_train.evaluation.answers import Answers, answer_prompts
from jetflow_train.evaluation.offline import Walked, evaluate
from jetflow_train.evaluation.policies import CHAIN, OWN, exact_policies
from jetflow_train.evaluation.sets import EvalSets
from jetflow_train.target import FrozenTarget

BUDGETS = (16, 64)
ALL_SETS = "all"


class StoredAnswerEvaluation:
    """Tau by set and budget of a head in training; what ``Trainer.run`` takes as ``evaluate``.

    Args:
        target: the frozen target that wrote the answers.
        answers: its greedy answers by the name of their set.
        budgets: rows of a tree, root included.

    Raises:
        ValueError: no answers, some that were sampled, or a budget below 1.
    """

    def __init__(
        self,
        target: FrozenTarget,
        answers: Mapping[str, Answers],
        budgets: Sequence[int] = BUDGETS,
    ) -> None:
        if not answers:
            raise ValueError("evaluation in training needs at least one set of answers")
        for name, some in answers.items():
            if some.temperature != 0:
                raise ValueError(f"the answers of {name} were sampled, greedy ones are needed")
        if not budgets or min(budgets) < 1:
            raise ValueError(f"budgets {list(budgets)} are out of range: each at least 1")
        self._target, self._answers, self._budgets = target, dict(answers), tuple(budgets)

    @staticmethod
    def prepare(
        target: FrozenTarget,
        eval_sets: EvalSets,
        budgets: Sequence[int] = BUDGETS,
        *,
        report: Callable[[str], None] = print,
    ) -> StoredAnswerEvaluation:
        """Lets the target answer the prompts of ``eval_sets`` once, greedily.

        ``report`` takes lines of progress.
        """
        backend = told_backend(target, report)
        answers = {
            name: answer_prompts(target, prompts, backend=backend)
            for name, prompts in eval_sets.items()
        }
        return StoredAnswerEvaluation(target, answers, budgets)

    def __call__(self, head: DraftHead, step: int) -> dict[str, float]:
        """Figures of ``head``, which do not depend on ``step``.

        Returns:
            Tau by ``tau/SET/TREES``, the trees being ``chain`` or a budget; of several sets also
            that of ``all``, tokens and rounds pooled.

        Raises:
            ValueError: the head's logits are not finite.
        """
        policies = {OWN: exact_policies(self._budgets, head.config.max_depth)}
        found = {
            name: evaluate(self._target, head, answers, policies).walked
            for name, answers in self._answers.items()
        }
        figures = {
            f"tau/{name}/{_trees(each)}": each.tau for name, some in found.items() for each in some
        }
        if len(found) > 1:
            for same in zip(*found.values(), strict=True):
                rounds = sum(each.rounds for each in same)
                figures[f"tau/{ALL_SETS}/{_trees(same[0])}"] = (
                    sum(each.tokens for each in same) / rounds
                )
        return figures


def _trees(walked: Walked) -> str:
    policy = walked.policy
    return CHAIN if policy.kind == CHAIN else str(policy.budget)
