"""Evaluation while a head learns: tau on answers that the target gave once, greedy and sampled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from jetflow_core.head.model import DraftHead

from jetflow_train.answering import told_backend
from jetflow_train.evaluation.answers import Answers, answer_prompts
from jetflow_train.evaluation.offline import Walked, evaluate
from jetflow_train.evaluation.policies import CHAIN, OWN, exact_policies
from jetflow_train.evaluation.sets import EvalSets
from jetflow_train.target import FrozenTarget
from jetflow_train.temperatures import answers_name

BUDGETS = (16, 64)
ALL_SETS = "all"


class StoredAnswerEvaluation:
    """Tau by set and budget of a head in training; what ``Trainer.run`` takes as ``evaluate``.

    Args:
        target: the frozen target that wrote the answers.
        answers: its answers by the name of their set, one entry a temperature.
        budgets: rows of a tree, root included.

    Raises:
        ValueError: no answers, sets with answers at different temperatures, or a budget below 1.
    """

    def __init__(
        self,
        target: FrozenTarget,
        answers: Mapping[str, Sequence[Answers]],
        budgets: Sequence[int] = BUDGETS,
    ) -> None:
        asked = {tuple(each.temperature for each in several) for several in answers.values()}
        if not any(asked):
            raise ValueError("evaluation in training needs at least one set of answers")
        if len(asked) > 1:
            raise ValueError(f"the sets have answers at different temperatures: {sorted(asked)}")
        if not budgets or min(budgets) < 1:
            raise ValueError(f"budgets {list(budgets)} are out of range: each at least 1")
        self._target, self._answers, self._budgets = target, dict(answers), tuple(budgets)

    @staticmethod
    def prepare(
        target: FrozenTarget,
        eval_sets: EvalSets,
        budgets: Sequence[int] = BUDGETS,
        *,
        temperatures: Sequence[float] = (0.0,),
        report: Callable[[str], None] = print,
    ) -> StoredAnswerEvaluation:
        """Lets the target answer the prompts of ``eval_sets`` once at each of ``temperatures``.

        ``report`` takes lines of progress.
        """
        backend = told_backend(target, report)
        answers = {
            name: [
                answer_prompts(target, prompts, temperature=temperature, backend=backend)
                for temperature in temperatures
            ]
            for name, prompts in eval_sets.items()
        }
        return StoredAnswerEvaluation(target, answers, budgets)

    def __call__(self, head: DraftHead, step: int) -> dict[str, float]:
        """Figures of ``head``, which do not depend on ``step``.

        Returns:
            Tau by ``tau/SET/TREES``, the trees being ``chain`` or a budget, and the set of
            sampled answers having their temperature in its name, such as ``math at 0.7``; of
            several sets also that of ``all``, tokens and rounds pooled at each temperature.

        Raises:
            ValueError: the head's logits are not finite.
        """
        policies = {OWN: exact_policies(self._budgets, head.config.max_depth)}
        figures: dict[str, float] = {}
        pooled: dict[float, list[tuple[Walked, ...]]] = {}
        for name, several in self._answers.items():
            for answers in several:
                walked = evaluate(self._target, head, answers, policies).walked
                pooled.setdefault(answers.temperature, []).append(walked)
                shown = answers_name(name, answers.temperature)
                figures |= {f"tau/{shown}/{_trees(each)}": each.tau for each in walked}
        if len(self._answers) > 1:
            for temperature, found in pooled.items():
                shown = answers_name(ALL_SETS, temperature)
                figures |= {
                    f"tau/{shown}/{_trees(same[0])}": _pooled_tau(same)
                    for same in zip(*found, strict=True)
                }
        return figures


def _pooled_tau(walked: Sequence[Walked]) -> float:
    return sum(each.tokens for each in walked) / sum(each.rounds for each in walked)


def _trees(walked: Walked) -> str:
    policy = walked.policy
    return CHAIN if policy.kind == CHAIN else str(policy.budget)
