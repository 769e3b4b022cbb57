"""Two purses of seconds, so that trying never makes a run slower than plain decoding by much."""

from __future__ import annotations

SHARE = 0.005
"""Of the time of a run: what each purse gets. Probes and losses together so cost 1 %."""
_FREE_ROUNDS = 8.0
_IN_FLIGHT = 3.0


class Account:
    """What rounds with trees have lost against plain rounds, and what may still be lost.

    A round with trees first costs all that it takes more than a plain one. What it gave beyond a
    token a request comes back when it was read, as the time that plain rounds would have needed for
    that. So trees that pay fill the purse, and trees that do not empty it, whatever was expected of
    them. Probes, made while trees are not expected to pay, are paid from a purse of their own.
    """

    def __init__(self) -> None:
        self.left: float | None = None
        """Seconds that may still be lost; None before the first round."""
        self.saved = 0.0
        """Seconds for the next probe."""

    def pass_time(self, seconds: float, plain: float, dearest: float) -> None:
        """A round is chosen now; both purses get their share of its time.

        Args:
            seconds: of the round.
            plain: of a plain round of the same batch.
            dearest: what the dearest round takes more than a plain one.
        """
        most = _FREE_ROUNDS * plain + _IN_FLIGHT * dearest
        left = most if self.left is None else self.left + SHARE * seconds
        self.left = min(left, most)
        self.saved = min(self.saved + SHARE * seconds, max(dearest, plain))

    def affords(self, extra: float) -> bool:
        """Whether a round may take so much longer than a plain one."""
        return self.left is None or extra <= self.left

    def affords_probe(self, extra: float) -> bool:
        """The same of a probe."""
        return extra <= self.saved

    def pay(self, extra: float, *, probe: bool) -> None:
        """A round takes so much longer than a plain one."""
        if probe:
            self.saved -= extra
        elif self.left is not None:
            self.left -= extra

    def earn(self, worth: float) -> None:
        """Tokens of a round with trees would have cost plain rounds so many seconds more."""
        if self.left is not None:
            self.left += worth
