"""From the settings to a plan: everything that can be wrong is refused here, nothing started."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jetflow_core.bench.prompts import PromptSet, load_sets
from jetflow_core.defaults import default_head, default_target, is_default_target
from jetflow_core.embedded import EMBEDDED_NAME
from jetflow_core.reports.files import OutputError, check_output

from jetflow_serve.bench.client import Requests
from jetflow_serve.bench.configurations import (
    AUTO,
    PLAIN,
    Served,
    ServerPlan,
    offers_auto,
    plan_running,
    plan_servers,
)
from jetflow_serve.bench.loads import plan_loads
from jetflow_serve.bench.run import Plan
from jetflow_serve.bench.servers import check_port, running_server
from jetflow_serve.bench.settings import ServeBenchSettings
from jetflow_serve.check import require_hooks
from jetflow_serve.heads import check_target, read_head
from jetflow_serve.installed import InstalledVllm


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where a run writes and listens."""

    out: str | None = None
    logs: str | None = None
    """Folder; None: beside ``out``, or a new one in the system's folder for such files."""
    port: int | None = None


def prepare(settings: ServeBenchSettings, places: Places, vllm: InstalledVllm) -> Plan:
    """What will be run.

    Args:
        settings: of the run.
        places: where it writes and listens.
        vllm: whose client makes the load, from ``check_client``.

    Raises:
        ValueError: a file is missing or cannot be written, head and target do not fit, the port is
            in use, no server answers; the message names it.
    """
    if places.port is not None:
        if settings.url is not None:
            raise ValueError("--port is for servers that are started here, not with --url")
        check_port(places.port)
    out = None if places.out is None else check_output(places.out)
    sets = load_sets(settings.prompts, limit=settings.limit, seed=settings.seed)
    texts = tuple(prompt.text for one in sets for prompt in one.prompts)
    servers, models = _servers(settings)
    loads = plan_loads(settings.batches, settings.rates, settings.requests, len(texts))
    return Plan(
        settings=settings,
        servers=tuple(servers),
        loads=tuple(loads),
        requests=Requests(
            texts=texts,
            tokenizer=settings.target if settings.url else None,
            max_new_tokens=settings.max_new_tokens,
            temperature=settings.temperature,
            seed=settings.seed,
            raw=settings.raw,
        ),
        used={"vllm": vllm.version, **models, "prompts": _told_sets(sets)},
        out=out,
        logs=_logs(places.logs, out),
        port=places.port,
    )


def _servers(settings: ServeBenchSettings) -> tuple[list[ServerPlan], dict[str, Any]]:
    """The servers, and how the report calls their models."""
    if settings.url is not None:
        server = running_server(settings.url)
        plan = plan_running(settings.modes, settings.budgets)
        return [plan], {"target": server.root, "head": None}
    served = _served(settings)
    plans = plan_servers(settings.modes, settings.budgets, served, one_server=settings.one_server)
    embedded = is_default_target(served.target)
    name = EMBEDDED_NAME if embedded else served.target
    return plans, {"target": name, "head": served.head}


def _served(settings: ServeBenchSettings) -> Served:
    target = settings.target or str(default_target())
    if set(settings.modes) == {PLAIN}:
        return Served(
            target=target, head=None, depth=None, chain_budget=1, options=settings.server_options
        )
    if AUTO in settings.modes and not offers_auto():
        raise ValueError("mode auto: this version of jetflow-serve chooses no budgets by load")
    if settings.head is None and not is_default_target(target):
        raise ValueError("chain and trees need --head: this target has no default head")
    folder = Path(settings.head or default_head())
    head = read_head(folder)
    if settings.depth is not None and settings.depth > head.max_depth:
        raise ValueError(
            f"depth {settings.depth} is out of range: the head {folder.name} goes to "
            f"{head.max_depth}"
        )
    check_target(head, target)
    require_hooks()
    return Served(
        target=target,
        head=str(folder),
        depth=settings.depth,
        chain_budget=(settings.depth or head.max_depth) + 1,
        options=settings.server_options,
    )


def _told_sets(sets: list[PromptSet]) -> list[dict[str, Any]]:
    return [
        {"name": one.name, "prompts": len(one.prompts), "fingerprint": one.fingerprint}
        for one in sets
    ]


def _logs(given: str | None, out: Path | None) -> Path:
    if given is None and out is None:
        return Path(tempfile.mkdtemp(prefix="jetflow-bench-serve-"))
    folder = Path(given) if given is not None else _beside(out)
    try:
        folder.mkdir(exist_ok=True)
        check_output(folder / "plan.json")
    except OSError as error:
        raise OutputError(f"cannot make the folder {folder}: {error.strerror}") from error
    # The client is another process, and may have another idea of where relative names begin.
    return folder.resolve()


def _beside(out: Path | None) -> Path:
    assert out is not None
    return out.with_name(f"{out.stem}-logs")
