"""Acceptance counted over rounds: tokens per round, by depth and by rank among siblings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jetflow_tree.accept import Accepted
from jetflow_tree.tree import Tree

TAU_FORMULA = "tau = emitted tokens / rounds = (accepted + corrections) / rounds"
"""To be printed beside the number. Only a round cut by a stop emits no correction; without such
rounds it reads (accepted + rounds) / rounds."""


@dataclass(slots=True)
class Tally:
    """How often a drafted token could have been kept here, and how often it was."""

    offered: int = 0
    """Times the walk came to a row that has such a child."""
    kept: int = 0
    """Times that child was accepted."""


@dataclass(slots=True)
class AcceptanceStats:
    """Counts over the rounds added so far.

    Examples:
        >>> tree = Tree.from_parents([7, 1, 2], [-1, 0, 1])
        >>> stats = AcceptanceStats()
        >>> stats.add(tree, Accepted(nodes=(1,), tokens=(1,), correction=9))
        >>> stats.tau
        2.0
    """

    rounds: int = 0
    """Rounds of draft and verify."""
    accepted: int = 0
    """Drafted tokens that were kept and emitted."""
    corrections: int = 0
    """The target's own tokens emitted after them, one a round unless a stop cut it."""
    rows: int = 0
    """Rows verified, roots included."""
    expected: float = 0.0
    """Sum of the trees' expected lengths: what the head believed tau would be, times rounds."""
    by_depth: list[Tally] = field(default_factory=list)
    """Entry d - 1 counts depth d, offered to walks that came to depth d - 1."""
    by_rank: list[Tally] = field(default_factory=list)
    """Entry r - 1 counts the r-th best of the children of the rows the walks came to."""

    def add(
        self,
        tree: Tree,
        accepted: Accepted,
        ranks: Sequence[int] | None = None,
        emitted: int | None = None,
    ) -> None:
        """Count one round.

        Args:
            tree: The verified tree.
            accepted: What the round's walk kept.
            ranks: Rank of each accepted node, 1 for the best; left out, the rank of its score
                among its siblings (equal scores in row order).
            emitted: Tokens that reached the output, at most accepted + 1; fewer when a stop or
                the length cap fell inside the round. Left out, all of them did.

        Raises:
            ValueError: If emitted or the number of ranks does not fit the accepted nodes.
        """
        length = len(accepted.nodes)
        shown = length + 1 if emitted is None else emitted
        if not 0 <= shown <= length + 1:
            raise ValueError(f"emitted must be in 0..{length + 1}, got {shown}")
        if ranks is not None and len(ranks) != length:
            raise ValueError(f"{length} accepted nodes need as many ranks, got {len(ranks)}")
        nodes = accepted.nodes[:shown]
        self.rounds += 1
        self.accepted += len(nodes)
        self.corrections += shown - len(nodes)
        self.rows += tree.num_nodes
        self.expected += tree.expected_length()
        # A walk cut by a stop inside the accepted run never asked what follows.
        asked = (0, *nodes) if shown > length else (0, *nodes[:-1])
        for depth, row in enumerate(asked[: max(shown, 1)]):
            following = nodes[depth] if depth < len(nodes) else None
            rank = ranks[depth] if ranks is not None and following is not None else None
            self._count(tree, depth, row, following, rank)

    def merge(self, other: AcceptanceStats) -> None:
        """Add another count to this one."""
        self.rounds += other.rounds
        self.accepted += other.accepted
        self.corrections += other.corrections
        self.rows += other.rows
        self.expected += other.expected
        for mine, theirs in ((self.by_depth, other.by_depth), (self.by_rank, other.by_rank)):
            for place, tally in enumerate(theirs, start=1):
                entry = _entry(mine, place)
                entry.offered += tally.offered
                entry.kept += tally.kept

    @property
    def tokens(self) -> int:
        """Emitted tokens: accepted + corrections."""
        return self.accepted + self.corrections

    @property
    def tau(self) -> float:
        """Tokens per round, by TAU_FORMULA.

        Raises:
            ValueError: If no round was counted.
        """
        self._check_rounds()
        return self.tokens / self.rounds

    @property
    def expected_length(self) -> float:
        """Mean of the trees' expected lengths; far above tau, the head is over-confident.

        Raises:
            ValueError: If no round was counted.
        """
        self._check_rounds()
        return self.expected / self.rounds

    def to_dict(self) -> dict[str, object]:
        """All counts and rates as plain values for JSON; rates are None before any round."""
        counted = self.rounds > 0
        return {
            "rounds": self.rounds,
            "tokens": self.tokens,
            "accepted": self.accepted,
            "corrections": self.corrections,
            "rows": self.rows,
            "tau": self.tau if counted else None,
            "tau_formula": TAU_FORMULA,
            "expected_length": self.expected_length if counted else None,
            "by_depth": [
                {"depth": place, "offered": tally.offered, "kept": tally.kept}
                for place, tally in enumerate(self.by_depth, start=1)
            ],
            "by_rank": [
                {"rank": place, "offered": tally.offered, "kept": tally.kept}
                for place, tally in enumerate(self.by_rank, start=1)
            ],
        }

    def _count(
        self, tree: Tree, depth: int, row: int, following: int | None, rank: int | None
    ) -> None:
        children = tree.children(row)
        if not children:
            return
        ranked = sorted(children, key=lambda child: -float(tree.scores[child]))
        _entry(self.by_depth, depth + 1).offered += 1
        for place in range(1, len(ranked) + 1):
            _entry(self.by_rank, place).offered += 1
        if following is not None:
            self.by_depth[depth].kept += 1
            _entry(self.by_rank, rank or ranked.index(following) + 1).kept += 1

    def _check_rounds(self) -> None:
        if not self.rounds:
            raise ValueError("no round was counted yet, so there is no rate")


def _entry(tallies: list[Tally], place: int) -> Tally:
    while len(tallies) < place:
        tallies.append(Tally())
    return tallies[place - 1]
