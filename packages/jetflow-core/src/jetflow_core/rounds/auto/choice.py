"""The rows of the next round: as many as give most expected tokens a second, or a plain round."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jetflow_core.limits import MAX_BUDGET
from jetflow_core.rounds.auto.account import Account
from jetflow_core.rounds.auto.costs import RoundCosts, tree_rows_for
from jetflow_core.rounds.auto.outlook import Outlook
from jetflow_core.rounds.budgets import LiveBatch, Shares, check_budget

MOST_TOTAL = 1024
"""Rows of all trees of a round that are ever tried."""
_MARGIN = 1.01
_FIRST_LOOK = 1.25


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """Rows that a round could have, with what is known of it."""

    total: int
    tree_rows: int
    """1: a plain round."""
    seconds: float
    tokens: float
    """Expected of the whole batch."""

    @property
    def rate(self) -> float:
        """Expected tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice(Shares):
    """The rows of a round, and why."""

    seconds: float
    """As measured."""
    plain_seconds: float
    tokens: float
    """Expected of the whole batch."""
    why: str


class AutoBudget:
    """``Budgets`` that choose every round's rows for the whole batch.

    Args:
        costs: of rounds; None: the runner measures them before its first run.
            They are then its ``costs``; ``given`` says which of both it is.
        most: rows of one tree at most, 2 to 256.
        most_total: rows of all trees of a round at most, 2 or more.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self, costs: RoundCosts | None = None, *, most: int = MAX_BUDGET,
        most_total: int = MOST_TOTAL,
    ) -> None:  # fmt: skip
        check_budget(most)
        for name, number in (("most", most), ("most_total", most_total)):
            if number < 2:
                raise ValueError(f"{name} {number} is out of range: with auto at least 2")
        self.most, self.most_total = most, most_total
        self.costs, self.given = costs, costs is not None
        self.restart()

    def restart(self) -> None:
        """Forgets all rounds, and keeps what they cost."""
        self._outlook, self._account = Outlook(), Account()
        self._rounds: Counter[tuple[int, int]] = Counter()
        self._reasons: Counter[str] = Counter()
        self._sums = np.zeros(3)
        self._newest: tuple[Option, ...] = ()

    def share(self, batch: LiveBatch) -> Choice:
        """The rows of the next round.

        Raises:
            RuntimeError: no costs are known.
        """
        live = len(batch.requests)
        plain, *trees = self._options(batch)
        dearest = max([option.seconds - plain.seconds for option in trees], default=0.0)
        chosen, why = self._chosen(plain, trees)
        self._account.pass_time(chosen.seconds, plain.seconds, max(dearest, 0.0))
        if chosen.tree_rows > 1:
            self._account.pay(chosen.seconds - plain.seconds, probe=why == "probe")
        self._rounds[live, chosen.total] += 1
        self._reasons[why] += 1
        self._newest = (plain, *trees)
        return Choice(
            rows=(chosen.tree_rows,) * live, total=chosen.total, seconds=chosen.seconds,
            plain_seconds=plain.seconds, tokens=chosen.tokens, why=why,
        )  # fmt: skip

    def learn(self, choice: Choice, requests: int, kept: int, promise: NDArray[np.float64]) -> None:
        """Takes in a round that was read.

        Args:
            choice: its rows.
            requests: that were still live in it.
            kept: drafted tokens that their walks kept.
            promise: as ``BatchTrees.promise``, of that round; not looked at if it was plain.
        """
        if requests < 1:
            return
        self._outlook.pass_time(requests)
        self._sums += (choice.tokens, requests + kept, choice.seconds)
        if choice.rows[0] == 1:
            return
        self._account.earn(choice.plain_seconds * kept / requests)
        self._outlook.learn(promise, choice.rows[0], requests, kept)

    def as_dict(self) -> dict[str, Any]:
        """What was chosen and why, for reports.

        Returns:
            rounds: how often each number of rows was chosen, by requests; reasons; expected_tokens
            and tokens of all rounds that were read, and their measured seconds; trust: drafted
            tokens kept over promised; newest: rows, seconds, expected tokens and tokens a second of
            all options at the newest choice.
        """
        expected, tokens, seconds = map(float, self._sums)
        return {
            "rounds": [
                {"requests": live, "rows": total, "rounds": count}
                for (live, total), count in sorted(self._rounds.items())
            ],
            "reasons": dict(self._reasons),
            "expected_tokens": expected,
            "tokens": tokens,
            "seconds": seconds,
            "trust": self._outlook.trust,
            "newest": [
                {
                    "rows": option.total, "seconds": option.seconds,
                    "expected_tokens": option.tokens, "tokens_per_second": option.rate,
                }
                for option in self._newest
            ],
        }  # fmt: skip

    def _options(self, batch: LiveBatch) -> list[Option]:
        """A plain round, then all sizes that hold every root."""
        costs, live = self.costs, len(batch.requests)
        if costs is None:
            raise RuntimeError("no costs of rounds are known: measure them before the first run")
        bucket = costs.bucket(batch.slots)
        found = [
            Option(
                total=live, tree_rows=1, tokens=float(live),
                seconds=costs.at(bucket, bucket, batch.context),
            )
        ]  # fmt: skip
        for total in costs.totals(bucket):
            if live < total <= min(self.most * live, self.most_total):
                rows = tree_rows_for(bucket, total, most=self.most)
                found.append(
                    Option(
                        total=total, tree_rows=rows,
                        seconds=costs.at(bucket, total, batch.context),
                        tokens=live * self._outlook.tokens(min(total / live, rows)),
                    )
                )  # fmt: skip
        return found

    def _chosen(self, plain: Option, trees: list[Option]) -> tuple[Option, str]:
        if not trees:
            return plain, "no trees"
        if not self._outlook.seen:
            return self._first_look(plain, trees), "first look"
        best = max(trees, key=lambda option: option.rate)
        if self._may_pay(best, plain):
            payable = [o for o in trees if self._account.affords(o.seconds - plain.seconds)]
            best = max(payable, key=lambda option: option.rate, default=plain)
            if self._may_pay(best, plain):
                return best, "pays"
            return self._probe(plain, trees) or (plain, "spent")
        return self._probe(plain, trees) or (plain, "plain pays")

    def _may_pay(self, option: Option, plain: Option) -> bool:
        """Whether trees are faster than plain rounds, if what is kept is no more than unlucky.

        To be wrong costs what the account allows and no more; to leave trees that pay after a few
        unlucky rounds would cost until a probe is lucky.
        """
        drafted = (option.tokens - plain.tokens) * (1.0 + self._outlook.doubt)
        return (plain.tokens + drafted) / option.seconds > _MARGIN * plain.rate

    def _probe(self, plain: Option, trees: list[Option]) -> tuple[Option, str] | None:
        """The tree that is nearest to paying, now and then."""
        cheap = [o for o in trees if o.seconds <= 2 * plain.seconds] or [
            min(trees, key=lambda option: option.seconds)
        ]
        best = max(cheap, key=lambda option: option.rate)
        if self._account.affords_probe(best.seconds - plain.seconds):
            return best, "probe"
        return None

    def _first_look(self, plain: Option, trees: list[Option]) -> Option:
        """As many rows as cost little more than none."""
        cheap = [o for o in trees if o.seconds <= _FIRST_LOOK * plain.seconds]
        return cheap[-1] if cheap else min(trees, key=lambda option: option.seconds)
