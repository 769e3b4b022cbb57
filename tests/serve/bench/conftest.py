"""A server and a client that are none: they answer and write as vLLM's do, in threads."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from jetflow_core.bench.prompts import load_sets
from jetflow_serve.bench.client import MODULE, Requests
from jetflow_serve.bench.configurations import Served, plan_servers
from jetflow_serve.bench.drive import run_loads
from jetflow_serve.bench.loads import plan_loads
from jetflow_serve.bench.run import Plan
from jetflow_serve.bench.settings import ServeBenchSettings


class Answers(BaseHTTPRequestHandler):
    """What a server of vLLM's answers, as far as the benchmark asks."""

    server: FakeServer

    def do_GET(self) -> None:
        name = self.server.name
        bodies = {
            "/health": "",
            "/v1/models": self.server.models,
            "/metrics": "".join(
                f"# TYPE {metric} counter\n"
                f'{metric}{{engine="0",model_name="{name}"{labels}}} {value}\n'
                for (metric, labels), value in self.server.counters.items()
            ),
        }
        self._reply(bodies[self.path])

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.answer(json.loads(self.rfile.read(length)))
        self._reply("")

    def _reply(self, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class FakeServer(ThreadingHTTPServer):
    """Counts ten rounds a request; half of what is drafted in a round's first two depths is kept.

    Args:
        port: to listen at.
        budget: rows of a round, root included; 1: it never drafts.
        deaf: it does not read what requests ask for.
    """

    def __init__(self, port: int, budget: int, *, deaf: bool) -> None:
        super().__init__(("127.0.0.1", port), Answers)
        self.name, self.budget, self.deaf = "some-model", budget, deaf
        self.models = json.dumps({"data": [{"id": self.name, "root": f"root-of-{self.name}"}]})
        self.counters: dict[tuple[str, str], float] = {}
        self.asked: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, body: dict[str, Any]) -> None:
        self.asked.append(body)
        asked = {} if self.deaf else body.get("vllm_xargs", {})
        own = asked.get("jetflow_budget", self.budget)
        nodes = 0 if own == "off" else min(own, self.budget) - 1
        if nodes:
            self._add("vllm:spec_decode_num_drafts_total", "", 10)
            self._add("vllm:spec_decode_num_draft_tokens_total", "", 10 * nodes)
            self._add("vllm:spec_decode_num_accepted_tokens_total", "", 15)
            for place, kept in enumerate((10, 5)):
                labels = f',position="{place}"'
                self._add("vllm:spec_decode_num_accepted_tokens_per_pos_total", labels, kept)

    def _add(self, metric: str, labels: str, count: float) -> None:
        key = (metric, labels)
        self.counters[key] = self.counters.get(key, 0) + count


@dataclass
class FakeProcess:
    """A process that has ended, or runs until it is stopped."""

    code: int | None
    server: FakeServer | None = None
    stopped: bool = False

    def poll(self) -> int | None:
        return self.code

    def stop(self) -> None:
        self.stopped = True
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()


@dataclass
class Fakes:
    """Starts fakes, and keeps what they were told."""

    started: list[tuple[str, list[str]]] = field(default_factory=list)
    servers: list[FakeProcess] = field(default_factory=list)
    runs: list[dict[str, str]] = field(default_factory=list)
    dies_at_start: str = "none"
    """A word of the arguments of the server that does not come up."""
    dies_under: str = "none"
    """The name of the client's file under whose load its server dies."""
    fails_under: str = "none"
    """Likewise, for requests that are not answered."""
    interrupted_under: str = "none"
    """Likewise, for a request to end."""
    silent: bool = False
    """Servers run and do not answer."""
    deaf: bool = False
    """Servers draft 15 nodes, whatever they were started with and are asked for."""

    def __call__(self, module: str, arguments: Sequence[str], log: Path) -> FakeProcess:
        self.started.append((module, list(arguments)))
        log.write_text(f"{module}\nthe last words\n")
        if module == MODULE:
            run_loads(Path(arguments[0]), self._run)
            return FakeProcess(0)
        return self._serve(list(arguments))

    def _serve(self, arguments: list[str]) -> FakeProcess:
        if self.dies_at_start in arguments:
            process = FakeProcess(3)
        elif self.silent:
            process = FakeProcess(None)
        else:
            options = dict(pairwise(arguments))
            budget = int(options.get("--budget", 1))
            server = FakeServer(int(options["--port"]), 16 if self.deaf else budget, deaf=self.deaf)
            process = FakeProcess(None, server)
        self.servers.append(process)
        return process

    def _run(self, arguments: list[str]) -> None:
        options = dict(pairwise(arguments))
        self.runs.append(options)
        name = options["--result-filename"].removesuffix(".result.json")
        if name == self.interrupted_under:
            signal.raise_signal(signal.SIGTERM)
        lines = Path(options["--dataset-path"]).read_text().splitlines()
        body = json.loads(options.get("--extra-body", "{}"))
        for line in lines:
            data = json.dumps({**json.loads(line), **body}).encode()
            with urlopen(Request(f"{options['--base-url']}/v1/completions", data)):
                pass
        if name == self.dies_under:
            self.servers[-1].code = -9
        failed = 1 if name == self.fails_under else 0
        result = _result(lines, failed, speed=50.0 + 10 * len(body))
        folder = Path(options["--result-dir"])
        (folder / options["--result-filename"]).write_text(json.dumps(result))


def _result(lines: list[str], failed: int, speed: float) -> dict[str, Any]:
    """As vLLM's client writes it, with made-up figures."""
    latencies = {
        f"{which}_{name}_ms": 1000.0 / speed * (3 if which == "p99" else 1)
        for name in ("ttft", "itl", "tpot", "e2el")
        for which in ("median", "p99")
    }
    return {
        "completed": len(lines) - failed,
        "failed": failed,
        "errors": ["no room\nat all"] * failed + [""] * (len(lines) - failed),
        "duration": 2.0,
        "total_input_tokens": 7 * len(lines),
        "total_output_tokens": 20 * len(lines),
        "output_throughput": speed,
        "request_throughput": speed / 20,
        "generated_texts": lines,
        **latencies,
    }


@pytest.fixture
def fakes() -> Iterator[Fakes]:
    made = Fakes()
    yield made
    for process in made.servers:
        assert process.stopped


def make_plan(folder: Path, **options: Any) -> Plan:
    """A plan without models: plain decoding, a chain of 8 rows, trees of 4 and 16 rows."""
    given = {"budgets": (4, 16), "batches": (1, 2), "max_new_tokens": 20, "warm_up": 0, **options}
    settings = ServeBenchSettings(**given)
    sets = load_sets(settings.prompts)
    texts = tuple(prompt.text for one in sets for prompt in one.prompts)
    served = Served(target="T", head="H", depth=None, chain_budget=8, options=("-q",))
    servers = plan_servers(settings.modes, settings.budgets, served, one_server=settings.one_server)
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    return Plan(
        settings=settings,
        servers=tuple(servers),
        loads=tuple(plan_loads(settings.batches, settings.rates, settings.requests, len(texts))),
        requests=Requests(
            texts=texts, tokenizer=None, max_new_tokens=20, temperature=0.0, seed=0, raw=True
        ),
        used={"vllm": "0.32.0", "target": "T", "head": "H", "prompts": [
            {"name": one.name, "prompts": len(one.prompts), "fingerprint": one.fingerprint}
            for one in sets
        ]},
        out=folder / "report.json",
        logs=logs,
        port=None,
    )  # fmt: skip


@pytest.fixture
def plan_maker(tmp_path: Path) -> Any:
    return lambda **options: make_plan(tmp_path, **options)
