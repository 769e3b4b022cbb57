"""The one line after a text: what it took, how it compares, and with what it was made."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean

from jetflow_core.commands.running import Run
from jetflow_core.lossless import Difference
from jetflow_core.reports.tau import tau_figures


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Names of what a run was made with."""

    target: str
    head: str | None
    dtype: str
    device: str
    threads: int | None
    """CPU threads; None where the device is no CPU."""
    budget: str
    seed: int | None
    """None where nothing is drawn."""

    def __str__(self) -> str:
        place = self.device if self.threads is None else f"{self.device}, {self.threads} threads"
        drawn = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.dtype} on {place}{drawn}; target {self.target}; head {self.head or 'none'}"


def summary_line(run: Run, plain: Run | None, setting: Setting) -> str:
    """Tokens, rounds, tau with its yardsticks, speed, budget used, names.

    Args:
        run: the run to tell of.
        plain: the plain run of the same prompt, for the speed-up.
        setting: names.
    """
    parts = [
        f"{len(run.tokens)} tokens in {len(run.rounds)} rounds",
        _tau(run),
        f"{run.tokens_per_second:.1f} tokens/s{_speed_up(run, plain)}",
        f"budget {setting.budget}{_rows(run, setting)}",
        str(setting),
    ]
    return "; ".join(part for part in parts if part)


def speed_up(run: Run, plain: Run) -> float:
    """How many times faster than plain decoding; 0.0 where nothing was written."""
    return run.tokens_per_second / plain.tokens_per_second if plain.tokens else 0.0


def _tau(run: Run) -> str:
    figures = tau_figures([run.written])
    text = f"tau {figures['tau']:.2f} (prompt lookup {figures['prompt_lookup']['tau']:.2f}"
    if figures["loop_share"]:
        text += f", {figures['loop_share']:.0%} is a loop, without it {_unlooped(figures)}"
    return text + ")"


def _unlooped(figures: dict[str, float]) -> str:
    return f"{figures['tau_without_loops']:.2f}"


def _speed_up(run: Run, plain: Run | None) -> str:
    if plain is None:
        return ""
    times = f"{speed_up(run, plain):.2f} times plain decoding"
    return f", {times} ({plain.tokens_per_second:.1f} tokens/s, one run of each)"


def _rows(run: Run, setting: Setting) -> str:
    if not run.rounds or setting.budget == "1":
        return ""
    return f" ({mean(r.tree.num_nodes for r in run.rounds):.1f} rows a round)"


def lossless_line(difference: Difference | None, *, tokens: int, dtype: str) -> str:
    """What ``--check-lossless`` found."""
    if difference is None:
        return f"lossless check: identical, {tokens} tokens ({dtype})"
    verdict = (
        f"a near-tie that rounding in {dtype} explains"
        if difference.is_near_tie
        else "NOT explained by rounding"
    )
    return (
        f"lossless check: token {difference.index} differs ({dtype}): plain {difference.plain}, "
        f"tree {difference.tree}; the plain run's top logits are {difference.gap:.4g} apart, its "
        f"decision {difference.margin:.4g}: {verdict}"
    )
