"""What is compared, and the servers that answer: plain decoding, chain, trees, auto."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

from jetflow_serve.commands.serve import command
from jetflow_serve.server import SERVER

PLAIN, CHAIN, TREE, AUTO = "plain", "chain", "tree", "auto"
KINDS = (PLAIN, CHAIN, TREE, AUTO)
JETFLOW = "jetflow_core.cli"
"""The module of the command ``jetflow``."""
BUDGET_FIELD = "jetflow_budget"
"""The key of a request's own budget in ``vllm_xargs``."""
PREFIX_CACHING = "--no-enable-prefix-caching"


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to decode."""

    name: str
    """Unique in a run: the kind, a tree's budget behind it."""
    kind: str
    budget: int | None
    """Rows of one verify pass, root included; None: the server decides."""
    asked: int | str | None = None
    """The budget that every request carries; None: requests carry none."""

    @property
    def extra_body(self) -> dict[str, Any]:
        """What every request carries beside prompt and length."""
        return {} if self.asked is None else {"vllm_xargs": {BUDGET_FIELD: self.asked}}


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """A server, and the configurations that are measured on it."""

    name: str
    module: str | None
    """What Python runs; None: the server runs already."""
    arguments: tuple[str, ...]
    configurations: tuple[Configuration, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """What servers that are started here have in common."""

    target: str
    head: str | None
    depth: int | None
    """Deepest depth to draft; None: the head's own."""
    chain_budget: int
    """Rows of a chain as deep as that, root included."""
    options: tuple[str, ...]
    """The user's own options of vLLM."""


def offers_auto() -> bool:
    """Whether ``jetflow serve --budget auto`` exists: budgets by load."""
    return AUTO in str(signature(command).parameters["budget"].annotation)


def default_kinds(*, running: bool) -> tuple[str, ...]:
    """What is compared when nobody says it.

    Args:
        running: on a server that runs already, which drafts trees or chains and not both.
    """
    if running:
        return (PLAIN, TREE)
    return KINDS if offers_auto() else (PLAIN, CHAIN, TREE)


def plan_servers(
    kinds: Sequence[str], budgets: Sequence[int], served: Served, *, one_server: bool
) -> list[ServerPlan]:
    """One server for each configuration, in the order in which they run.

    Args:
        kinds: of ``KINDS``.
        budgets: of the trees, ascending; auto uses no more rows than the largest.
        served: what all servers have in common.
        one_server: the trees of all budgets share the server of the largest one; each request says
            its budget.
    """
    found = []
    own: tuple[Configuration, ...]
    if PLAIN in kinds:
        own = (Configuration(PLAIN, PLAIN, 1),)
        arguments = ("--model", served.target, *_options(served))
        found.append(ServerPlan(PLAIN, SERVER, arguments, own))
    if CHAIN in kinds:
        rows = served.chain_budget
        own = (Configuration(CHAIN, CHAIN, rows),)
        found.append(_drafting(served, CHAIN, rows, own))
    if TREE in kinds and one_server:
        own = tuple(Configuration(f"{TREE}-{b}", TREE, b, asked=b) for b in budgets)
        found.append(_drafting(served, TREE, max(budgets), own))
    elif TREE in kinds:
        for budget in budgets:
            own = (Configuration(f"{TREE}-{budget}", TREE, budget),)
            found.append(_drafting(served, f"{TREE}-{budget}", budget, own))
    if AUTO in kinds:
        own = (Configuration(AUTO, AUTO, None),)
        # It chooses from what the trees beside it are given.
        most = ("--most", str(max(budgets)))
        found.append(_drafting(served, AUTO, AUTO, own, most))
    return found


def plan_running(kinds: Sequence[str], budgets: Sequence[int]) -> ServerPlan:
    """The one server that runs already: requests say what they want where they can.

    Plain decoding and the trees' budgets are asked by each request; a chain, and auto, are what
    the server was started for, so their requests say nothing.
    """
    found = []
    if PLAIN in kinds:
        found.append(Configuration(PLAIN, PLAIN, 1, asked="off"))
    if CHAIN in kinds:
        found.append(Configuration(CHAIN, CHAIN, None))
    if TREE in kinds:
        found += [Configuration(f"{TREE}-{b}", TREE, b, asked=b) for b in budgets]
    if AUTO in kinds:
        found.append(Configuration(AUTO, AUTO, None))
    return ServerPlan("running", None, (), tuple(found))


def _drafting(
    served: Served,
    name: str,
    budget: int | str,
    own: tuple[Configuration, ...],
    most: tuple[str, ...] = (),
) -> ServerPlan:
    assert served.head is not None
    depth = () if served.depth is None else ("--depth", str(served.depth))
    mode = ("--mode", "chain") if name == CHAIN else ()
    arguments = (
        "serve", served.target, "--head", served.head, "--budget", str(budget), *most, *mode,
        *depth, *_options(served),
    )  # fmt: skip
    return ServerPlan(name, JETFLOW, arguments, own)


def _options(served: Served) -> tuple[str, ...]:
    """The user's options; without them no prompt that comes again is answered from a cache."""
    if any("prefix-caching" in option for option in served.options):
        return served.options
    return (PREFIX_CACHING, *served.options)
