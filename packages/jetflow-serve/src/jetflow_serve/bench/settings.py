"""The settings of a run, checked as far as they can be without starting or asking anything."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from jetflow_core.bench.checks import check_at_least

from jetflow_serve.bench.configurations import AUTO, CHAIN, KINDS, PLAIN, TREE
from jetflow_serve.options import MOST_ROWS

_SET_HERE = (
    "--model", "--host", "--port", "--uds", "--worker-cls", "--speculative-config", "--api-key",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeBenchSettings:
    """What is measured.

    Raises:
        ValueError: a value is out of range, or two contradict each other; the message names them.
    """

    url: str | None = None
    """Of a server that runs already; None: servers are started."""
    target: str | None = None
    """As vLLM takes it; None: the embedded one. With ``url``: where its tokenizer is read, None:
    where the server says that it reads its own."""
    head: str | None = None
    """Folder; None: the default head of the embedded target."""
    modes: tuple[str, ...] = (PLAIN, CHAIN, TREE)
    budgets: tuple[int, ...] = (16, 64, 128, 256)
    depth: int | None = None
    batches: tuple[int, ...] = (1, 4, 16, 64)
    rates: tuple[float, ...] = ()
    prompts: tuple[str, ...] = ("builtin",)
    limit: int | None = None
    requests: int | None = None
    """Sent under each load; None: see ``plan_loads``."""
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    repeats: int = 1
    warm_up: int = 4
    """Requests before the first load of a configuration, not measured."""
    raw: bool = False
    """Prompts are sent as they are, without the tokenizer's chat template."""
    one_server: bool = False
    """Trees of all budgets share a server; requests say their budget."""
    server_options: tuple[str, ...] = ()
    start_seconds: int = 900
    """How long a server may take until it answers."""

    def __post_init__(self) -> None:
        for name in ("depth", "limit", "requests", "max_new_tokens", "repeats", "start_seconds"):
            check_at_least(name, getattr(self, name), 1)
        for name in ("seed", "warm_up"):
            check_at_least(name, getattr(self, name), 0)
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature {self.temperature} is out of range: at least 0")
        if not self.batches and not self.rates:
            raise ValueError("no load: give --batches, --rates, or both")
        if self.requests is not None and self.requests < max(self.batches, default=0):
            raise ValueError(
                f"requests {self.requests} never fill a batch of {max(self.batches)}: give at "
                "least as many"
            )
        self._check_modes()
        self._check_budgets()
        if self.url is None:
            self._check_options()
        else:
            _check_url(self.url)
            self._check_running()

    def _check_modes(self) -> None:
        for mode in self.modes:
            if mode not in KINDS:
                raise ValueError(f"mode {mode!r} is unknown: choose from {', '.join(KINDS)}")
        if not self.modes:
            raise ValueError(f"no modes: choose from {', '.join(KINDS)}")

    def _check_budgets(self) -> None:
        if not {TREE, AUTO} & set(self.modes):
            return
        if not self.budgets:
            raise ValueError("trees and auto need a budget: give --budgets")
        for budget in self.budgets:
            if not 2 <= budget <= MOST_ROWS:
                raise ValueError(
                    f"budget {budget} is out of range for a tree: 2 to {MOST_ROWS}; "
                    "1 is plain decoding"
                )

    def _check_options(self) -> None:
        for option in self.server_options:
            name = option.partition("=")[0]
            if name in _SET_HERE:
                raise ValueError(f"{name} is set by the benchmark; leave it out of vLLM's options")

    def _check_running(self) -> None:
        for given, name in (
            (self.head, "--head"),
            (self.depth, "--depth"),
            (self.one_server, "--one-server"),
            (self.server_options, "options of vLLM"),
        ):
            if given:
                raise ValueError(f"{name}: only for servers that are started here, not with --url")
        if CHAIN in self.modes and {TREE, AUTO} & set(self.modes):
            raise ValueError(
                f"modes {','.join(self.modes)}: a running server drafts either trees or chains, "
                "whichever it was started with; ask for one of them, or leave --url out"
            )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    good = parts.scheme in ("http", "https") and parts.hostname and port != 0
    if not good or parts.path or parts.query or parts.fragment:
        raise ValueError(f"url {url!r} is no server's address: as in http://localhost:8000")
