"""The run: one server after the other, each under all loads, the report written as it grows."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from jetflow_core.bench.partial import Partial
from jetflow_core.reports.files import write_report
from jetflow_core.reports.provenance import package_versions

from jetflow_serve.bench.client import Job, Requests, run_client
from jetflow_serve.bench.configurations import Configuration, ServerPlan
from jetflow_serve.bench.figures import NotMeasured, figures
from jetflow_serve.bench.loads import Load
from jetflow_serve.bench.processes import ModuleProcess, ProcessFailed, Start
from jetflow_serve.bench.report import make_report, where_from
from jetflow_serve.bench.schema import FORMAT, check_report
from jetflow_serve.bench.servers import NoServer, Server, running_server, serving
from jetflow_serve.bench.settings import ServeBenchSettings

_WARM_UP = "warm-up"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything that was decided, and checked, before the first server starts."""

    settings: ServeBenchSettings
    servers: tuple[ServerPlan, ...]
    loads: tuple[Load, ...]
    requests: Requests
    used: Mapping[str, Any]
    """What the settings led to, for the report."""
    out: Path | None
    logs: Path
    """A folder that is there, for logs and the client's own files."""
    port: int | None

    @property
    def configurations(self) -> list[Configuration]:
        """All that is measured, in its order."""
        return [each for server in self.servers for each in server.configurations]


class _Run:
    """What has been measured so far."""

    def __init__(self, plan: Plan, partial: Partial) -> None:
        self._plan, self._partial, self._origin = plan, partial, where_from()
        names = [each.name for each in plan.configurations]
        kept = {name: partial.get(name) for name in names}
        self.done: dict[str, Any] = {name: part for name, part in kept.items() if part is not None}
        self.failures: list[dict[str, Any]] = []

    def missing(self, server: ServerPlan) -> list[Configuration]:
        return [each for each in server.configurations if each.name not in self.done]

    def keep(self, name: str, part: dict[str, Any]) -> None:
        self._partial.put(name, part)
        self.done[name] = part
        self.write()

    def fail(self, name: str, error: Exception) -> None:
        log_end = error.log_end if isinstance(error, ProcessFailed) else ""
        self.failures.append({"name": name, "what": str(error), "log_end": log_end})

    def write(self) -> dict[str, Any]:
        plan = self._plan
        report = make_report(
            plan.settings, plan.used, plan.configurations, self.done, self.failures, self._origin
        )
        check_report(report)
        if plan.out is not None:
            write_report(plan.out, report)
        return report


def run_serve(
    plan: Plan, told: Callable[[str], None], start: Start = ModuleProcess
) -> dict[str, Any]:
    """The report of all configurations; one that fails is reported, and the others go on.

    With ``out`` the report is written after every configuration, and OUT.partial beside it lets
    the same settings go on after an interruption, or after a failure.

    Args:
        plan: what is run.
        told: gets a line about each step.
        start: how servers and clients are started.

    Raises:
        ValueError: OUT.partial is of another run.
    """
    partial = Partial(plan.out, _identity(plan))
    run = _Run(plan, partial)
    with _ended_like_ctrl_c():
        for server in plan.servers:
            missing = run.missing(server)
            if missing:
                _run_server(plan, server, missing, run, told, start)
    report = run.write()
    if report["finished"]:
        partial.remove()
    return report


def _run_server(
    plan: Plan, server: ServerPlan, missing: Sequence[Configuration], run: _Run,
    told: Callable[[str], None], start: Start,
) -> None:  # fmt: skip
    left = list(missing)
    try:
        with _opened(plan, server, told, start) as opened:
            while left:
                try:
                    run.keep(left[0].name, _measure(plan, opened, server, left[0], told, start))
                except NotMeasured as error:
                    _tell_failure(run, left[0], error, told)
                del left[0]
    except (ProcessFailed, NoServer) as error:
        for each in left:
            _tell_failure(run, each, error, told)


def _tell_failure(
    run: _Run, each: Configuration, error: Exception, told: Callable[[str], None]
) -> None:
    run.fail(each.name, error)
    told(f"{each.name} failed: {error}")


@contextmanager
def _opened(
    plan: Plan, server: ServerPlan, told: Callable[[str], None], start: Start
) -> Iterator[Server]:
    if plan.settings.url is not None:
        yield running_server(plan.settings.url)
        return
    told(f"{server.name}: starting its server")
    log = plan.logs / f"{server.name}.server.log"
    with serving(start, server, plan.port, log, plan.settings.start_seconds) as opened:
        told(f"{server.name}: its server answers after {opened.start_seconds:.0f} s")
        yield opened


def _measure(
    plan: Plan, server: Server, of: ServerPlan, each: Configuration,
    told: Callable[[str], None], start: Start,
) -> dict[str, Any]:  # fmt: skip
    """All loads of one configuration, ready to be kept."""
    jobs = _jobs(plan, each)
    found = run_client(start, server, plan.requests, each, jobs, plan.logs, told)
    repeats: dict[str, list[dict[str, Any]]] = {load.name: [] for load in plan.loads}
    for job, measured in zip(jobs, found, strict=True):
        told_figures = figures(each, job.load, measured)
        if not job.name.endswith(_WARM_UP):
            repeats[job.load.name].append(told_figures)
    return {
        "server": {
            "name": of.name,
            "arguments": [] if of.module is None else ["-m", of.module, *of.arguments],
            "model": server.model,
            "start_seconds": server.start_seconds,
        },
        "rows": [
            {
                "load": load.name,
                "kind": load.kind,
                "value": load.value,
                "requests": load.requests,
                "greedy": plan.settings.temperature == 0,
                "repeats": repeats[load.name],
            }
            for load in plan.loads
        ],
    }


def _jobs(plan: Plan, each: Configuration) -> list[Job]:
    jobs = []
    warm = plan.settings.warm_up
    if warm:
        most = max([int(load.value) for load in plan.loads if load.kind == "batch"], default=warm)
        jobs.append(Job(f"{each.name}.{_WARM_UP}", Load("batch", min(warm, most), warm)))
    for repeat in range(plan.settings.repeats):
        # Every other time backwards, so that no load always runs first.
        order = plan.loads[::-1] if repeat % 2 else plan.loads
        jobs += [
            Job(f"{each.name}.{load.name.replace(' ', '-')}.{repeat + 1}", load) for load in order
        ]
    return jobs


def _identity(plan: Plan) -> dict[str, Any]:
    """What must be equal for a run to go on with what another one finished."""
    return {
        "format": FORMAT,
        "packages": package_versions(),
        "vllm": plan.used["vllm"],
        **asdict(plan.settings),
        "texts": [one["fingerprint"] for one in plan.used["prompts"]],
    }


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Lets a request to end (SIGTERM) stop the servers too, as Ctrl-C does."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
