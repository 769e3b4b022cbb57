"""A server in processes of its own, and what it tells."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jetflow_serve.bench.processes import Process, Start


class Command:
    """The command ``jetflow`` as a person starts it; every process imports vLLM anew."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        command = str(Path(sys.executable).parent / "jetflow")
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        with log.open("w") as output:
            self._process = subprocess.Popen(
                [command, *arguments], stdout=output, stderr=subprocess.STDOUT, env=environment
            )

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=60)


@contextmanager
def server(
    arguments: Sequence[str], log: Path, start: Start = Command, seconds: int = 240
) -> Iterator[str]:
    """Starts ``jetflow serve`` with these arguments; gives its address once it is healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
    process = start("jetflow_core.cli", words, log)
    try:
        _wait(process, f"http://127.0.0.1:{port}/health", log, time.monotonic() + seconds)
        yield f"http://127.0.0.1:{port}"
        assert process.poll() is None, log.read_text()[-3000:]
    finally:
        process.stop()


def _wait(process: Process, url: str, log: Path, until: float) -> None:
    while time.monotonic() < until:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise TimeoutError(log.read_text()[-3000:])


def metrics(url: str) -> dict[str, float]:
    """The server's counters and gauges, summed over their labels."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(value)
    return found
