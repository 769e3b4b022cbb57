"""A server's own counters, read from its ``/metrics``."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator, Mapping

_READ = (
    "vllm:spec_decode", "jetflow:", "vllm:prefix_cache", "vllm:num_preemptions",
    "vllm:generation_tokens", "vllm:prompt_tokens_total", "vllm:request_success",
)  # fmt: skip
"""How the metrics begin that say what decoding did."""
# They name the server, which is one here.
_LEFT_OUT = ("model_name", "engine")
_SAMPLE = re.compile(r"^([^\s{]+)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def scrape(url: str) -> dict[str, float]:
    """The counters of the server at ``url``; see ``read_counters``.

    Raises:
        OSError: the server does not answer.
    """
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as reply:
        return read_counters(reply.read().decode("utf-8", "replace"))


def read_counters(text: str) -> dict[str, float]:
    """Counters, and sums and counts of histograms, in Prometheus' text.

    Returns:
        Values by name, as in ``jetflow:fallbacks_total{reason=off,shape=plain}``; over the labels
        that only name the server they are summed.
    """
    found: dict[str, float] = {}
    for name, labels, value in _samples(text):
        kept = sorted(f"{label}={said}" for label, said in labels if label not in _LEFT_OUT)
        key = f"{name}{{{','.join(kept)}}}" if kept else name
        found[key] = found.get(key, 0.0) + value
    return found


def _samples(text: str) -> Iterator[tuple[str, list[tuple[str, str]], float]]:
    kinds: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(maxsplit=3)
            kinds[name] = kind
            continue
        match = None if line.startswith("#") else _SAMPLE.match(line)
        if match is None or not match[1].startswith(_READ) or not _grows(match[1], kinds):
            continue
        yield match[1], _LABEL.findall(match[2] or ""), float(match[3])


def _grows(name: str, kinds: Mapping[str, str]) -> bool:
    family, _, ending = name.rpartition("_")
    if ending in ("sum", "count") and kinds.get(family) == "histogram":
        return True
    # Some writers of this format leave the ending of a counter out of its type.
    return kinds.get(name) == "counter" or (ending == "total" and kinds.get(family) == "counter")


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """By how much each counter grew; those that did not are left out.

    Raises:
        ValueError: one shrank, so the server was started anew in between.
    """
    for name, value in before.items():
        if after.get(name, 0.0) < value:
            raise ValueError(f"the server's counter {name} fell from {value:g}: another server?")
    changes = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return {name: value for name, value in sorted(changes.items()) if value}
