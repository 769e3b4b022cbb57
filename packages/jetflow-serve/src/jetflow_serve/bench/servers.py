"""Servers of the benchmark: started, waited for, watched, stopped; or found running."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from jetflow_serve.bench.configurations import ServerPlan
from jetflow_serve.bench.processes import Process, ProcessFailed, Start

HOST = "127.0.0.1"
_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_FOR_AN_ANSWER = 10


class NoServer(ValueError):
    """Nothing usable answers at an address; the message names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server that answers."""

    url: str
    model: str
    """The name that requests use."""
    root: str
    """Where the server read the model; its tokenizer is there too."""
    process: Process | None
    """None: not started here."""
    log: Path | None
    start_seconds: float | None

    def check(self) -> None:
        """Refuses to go on with a server that has died.

        Raises:
            ProcessFailed: with the end of its log.
        """
        if self.process is None or self.log is None:
            return
        code = self.process.poll()
        if code is not None:
            raise ProcessFailed(f"the server died, exit code {code}", self.log)


@contextmanager
def serving(
    start: Start, plan: ServerPlan, port: int | None, log: Path, seconds: float
) -> Iterator[Server]:
    """Starts a server, gives it once it answers, and stops it.

    Args:
        start: how processes are started.
        plan: what to start.
        port: to listen at; None: a free one.
        log: what the server prints.
        seconds: how long it may take until it answers.

    Raises:
        ProcessFailed: it died, or did not answer in time.
        ValueError: the port is in use.
    """
    assert plan.module is not None
    place = free_port() if port is None else port
    # Whoever listens there already would be taken for the new server.
    check_port(place)
    url = f"http://{HOST}:{place}"
    began = time.monotonic()
    process = start(plan.module, [*plan.arguments, "--host", HOST, "--port", str(place)], log)
    try:
        _wait(process, url, log, began + seconds, seconds)
        ready = time.monotonic() - began
        model, root = _model(url)
        yield Server(url=url, model=model, root=root, process=process, log=log, start_seconds=ready)
    finally:
        process.stop()


def running_server(url: str) -> Server:
    """The server that runs already at ``url``.

    Raises:
        NoServer: nothing there answers as vLLM's server does.
    """
    if not _healthy(url):
        raise NoServer(f"no server answers at {url}/health")
    model, root = _model(url)
    return Server(url=url, model=model, root=root, process=None, log=None, start_seconds=None)


def check_port(port: int) -> None:
    """Refuses a port that a server could not listen at.

    Raises:
        ValueError: it is out of range, or in use.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is out of range: 1 to 65535")
    with socket.socket() as probe:
        # As servers do: a port is free although connections to it have only just been closed.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ValueError(f"port {port} cannot be used: {error.strerror}") from error


def free_port() -> int:
    """A port that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _wait(process: Process, url: str, log: Path, until: float, seconds: float) -> None:
    while time.monotonic() < until:
        code = process.poll()
        if code is not None:
            raise ProcessFailed(f"the server died before it answered, exit code {code}", log)
        if _healthy(url):
            return
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    raise ProcessFailed(f"the server did not answer within {seconds:g} seconds", log)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=_SECONDS_FOR_AN_ANSWER) as reply:
            return bool(reply.status == 200)
    except (OSError, HTTPException):
        return False


def _model(url: str) -> tuple[str, str]:
    """Name and place of the first model that the server at ``url`` has."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=_SECONDS_FOR_AN_ANSWER) as reply:
            first: dict[str, Any] = json.loads(reply.read())["data"][0]
        return str(first["id"]), str(first["root"])
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        raise NoServer(f"{url}/v1/models names no model: not a server of vLLM's") from error
