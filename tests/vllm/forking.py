"""Servers and clients as forks of the process that has imported vLLM, which takes a minute."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

# What servers and clients import; their forks find it here.
import vllm.benchmarks.serve
import vllm.entrypoints.openai.api_server
import vllm.v1.engine.core  # noqa: F401 - imported to be there, not to be called

_SECONDS_TO_STOP = 30


class ForkedProcess:
    """A module that runs in a fork of this process; see ``jetflow_serve.bench.processes``."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        self._code: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            _become(module, arguments, log)

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def stop(self) -> None:
        if self.poll() is None:
            os.kill(self._pid, signal.SIGTERM)
        until = time.monotonic() + _SECONDS_TO_STOP
        while self.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        while self.poll() is None:
            time.sleep(0.05)


def _become(module: str, arguments: Sequence[str], log: Path) -> NoReturn:
    """Runs the module as ``python -m`` would, and ends the process."""
    code = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1)
        sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1)
        # As a program of its own would have it; this one runs engines in its own process.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
        # On a CPU vLLM insists on new Pythons for its engine and its worker.
        forks = multiprocessing.get_context("fork")
        multiprocessing.get_context = lambda method=None: forks
        os.execv = _run_instead
        _run(module, arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run_instead(_program: str, words: Sequence[str]) -> NoReturn:
    """What ``jetflow serve`` does in the end, without another Python."""
    _run(words[2], words[3:])
    sys.exit(0)


def _run(module: str, arguments: Sequence[str]) -> None:
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
