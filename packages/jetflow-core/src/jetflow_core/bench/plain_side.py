"""Starts the processes that write the plain side's answers, and collects what they wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What transformers' greedy generate wrote after one prompt."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    gaps: tuple[float, ...]
    """Best logit less second best, where each token was picked."""


class PlainSideError(ValueError):
    """The separate process failed; the message holds the last line it wrote."""


def plain_answers(
    texts: Sequence[str],
    *,
    target: str,
    dtype: str,
    device: str,
    max_new_tokens: int,
    threads: int,
    processes: int,
    progress: Callable[[], None],
) -> tuple[list[Answer], dict[str, Any]]:
    """Answers in the order of ``texts``, and the settings that the processes report.

    Args:
        texts: prompts.
        target: folder or hub name.
        dtype: name of a torch type.
        device: a torch device.
        max_new_tokens: most tokens of an answer.
        threads: torch threads of each process.
        processes: how many share the prompts.
        progress: called after each answer.

    Raises:
        PlainSideError: a process failed.
    """
    count = min(processes, len(texts))
    job = {"target": target, "dtype": dtype, "device": device,
           "max_new_tokens": max_new_tokens, "threads": threads}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="jetflow-") as scratch:
        running = [
            _Running(Path(scratch), share, job | {"prompts": list(texts[share::count])})
            for share in range(count)
        ]
        try:
            parts = [process.result(progress) for process in running]
        finally:
            for process in running:
                process.stop()
    answers: list[Answer | None] = [None] * len(texts)
    for share, part in enumerate(parts):
        for index, raw in enumerate(part["answers"]):
            answers[share + index * count] = Answer(
                tuple(raw["prompt"]), tuple(raw["tokens"]), tuple(raw["gaps"])
            )
    return [found for found in answers if found is not None], parts[0]["settings"]


class _Running:
    """One of the processes."""

    def __init__(self, folder: Path, share: int, job: dict[str, Any]) -> None:
        job_file = folder / f"job-{share}.json"
        self._answers = folder / f"answers-{share}.json"
        self._errors = folder / f"errors-{share}.txt"
        job_file.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "jetflow_core.bench.reference"]
        with self._errors.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [*command, str(job_file), str(self._answers)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def result(self, progress: Callable[[], None]) -> dict[str, Any]:
        """Waits for the answers; each line of output is one more."""
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            progress()
        if self._process.wait() != 0 or not self._answers.is_file():
            lines = self._errors.read_text(encoding="utf-8").strip().splitlines() or ["no message"]
            raise PlainSideError(f"the plain side failed: {lines[-1]}")
        found: dict[str, Any] = json.loads(self._answers.read_text(encoding="utf-8"))
        return found

    def stop(self) -> None:
        """Ends the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
