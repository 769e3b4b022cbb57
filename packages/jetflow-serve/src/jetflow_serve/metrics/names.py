"""The names of JetFlow's metrics in vLLM's Prometheus registry, and what each one counts.

Only what vLLM has no name for: drafted nodes, drafts and accepted tokens by position are vLLM's
``vllm:spec_decode_*``, and are right for trees. Prometheus adds ``_total`` to counters and
``_bucket``, ``_sum`` and ``_count`` to histograms. Every metric also has vLLM's labels
``model_name`` and ``engine``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric."""

    name: str
    """In the registry, without Prometheus' endings."""
    kind: Literal["counter", "gauge", "histogram"]
    text: str
    """What it counts, one sentence."""
    labels: tuple[str, ...] = ()
    """Beside vLLM's own."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram's."""


GAPS = tuple(float(f"{10 ** (step / 4):.2g}") for step in range(-24, 9))
"""Bounds that gaps of logits are rounded up to, from a millionth to a hundred."""

ROUNDS = Metric(
    name="jetflow:rounds",
    kind="counter",
    text="Requests times steps that picked tokens, by what was verified: tree, chain or plain.",
    labels=("shape",),
)
NODES = Metric(
    name="jetflow:nodes",
    kind="counter",
    text="Drafted nodes that were verified, roots not counted.",
)
ACCEPTED_BY_DEPTH = Metric(
    name="jetflow:accepted_by_depth",
    kind="counter",
    text="Drafted tokens that were kept, by their depth in the tree.",
    labels=("depth",),
)
ROUND_ROWS = Metric(
    name="jetflow:round_rows",
    kind="histogram",
    text="Rows of one request's verify pass, root included; 1 is plain decoding.",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
)
TREE_DEPTH = Metric(
    name="jetflow:tree_depth",
    kind="histogram",
    text="Deepest depth of a verified tree or chain.",
    buckets=(*range(1, 17), 24, 32, 64),
)
FALLBACKS = Metric(
    name="jetflow:fallbacks",
    kind="counter",
    text="Requests times steps drafted without branches, by shape and the request's reason.",
    labels=("shape", "reason"),
)
BUDGET = Metric(
    name="jetflow:budget",
    kind="gauge",
    text="Rows a request of the newest drafts, root included: the budget in use.",
)
BATCH_ROWS = Metric(
    name="jetflow:batch_rows",
    kind="gauge",
    text="Rows of all requests of the newest drafts, roots included.",
)
AUTO_STEPS = Metric(
    name="jetflow:auto_steps",
    kind="counter",
    text="Steps for which budget auto chose, by why it chose so.",
    labels=("why",),
)
AUDITED = Metric(
    name="jetflow:audited_requests",
    kind="counter",
    text="Finished requests decoded again without speculation, by result: same or diverged.",
    labels=("result",),
)
AUDIT_SKIPPED = Metric(
    name="jetflow:audit_skipped_requests",
    kind="counter",
    text="Finished requests drawn for the audit that it cannot judge, by reason.",
    labels=("reason",),
)
AUDIT_GAP = Metric(
    name="jetflow:audit_gap",
    kind="histogram",
    text="Where an audited request diverged: by how much plain decoding's logits favour its token.",
    buckets=GAPS,
)

METRICS = (
    ROUNDS, NODES, ACCEPTED_BY_DEPTH, ROUND_ROWS, TREE_DEPTH, FALLBACKS, BUDGET, BATCH_ROWS,
    AUTO_STEPS, AUDITED, AUDIT_SKIPPED, AUDIT_GAP,
)  # fmt: skip
"""All of them."""
