"""How many nodes each request of a batch gets next, as the host knows it before the device does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jetflow_serve.cuda.step import DeviceStep
from jetflow_serve.reasons import Shape


@dataclass(frozen=True, slots=True)
class Plan:
    """Of R requests."""

    nodes: list[int]
    """Most nodes of each tree; 0: none is drafted."""
    chains: list[bool]
    """Which of them get a chain."""


def plan_drafts(step: DeviceStep, batch: Any, nodes: int, *, chains_only: bool) -> Plan:
    """Whom to draft for, counted as it is decided; called once a step.

    Args:
        step: the runner's state; its ``planned`` is replaced for these requests.
        batch: vLLM's ``InputBatch``.
        nodes: most nodes of one tree.
        chains_only: whether the user wants chains for all.
    """
    counters = step.records.sums
    wanted, chains = [], []
    picked = 0
    for index, request in enumerate(batch.req_ids):
        own, chain = 0, False
        if _picks(batch, index):
            picked += 1
            if step.paths is None or not step.drafted[index]:
                counters.decoded()
            choice, _ = step.choices[request]
            counters.drafted(choice.shape, choice.reason)
            own = nodes if choice.budget is None else min(nodes, choice.budget - 1)
            own = 0 if choice.shape is Shape.PLAIN else own
            chain = chains_only or choice.shape is Shape.CHAIN
            own = min(own, step.depth) if chain else own
        step.planned[request] = own
        wanted.append(own)
        chains.append(chain)
    counters.batch = (picked, picked + sum(wanted))
    return Plan(wanted, chains)


def _picks(batch: Any, index: int) -> bool:
    """Whether a token is picked for a request in this step: its prompt ends with it, or has."""
    done = batch.num_computed_tokens_np[index] + batch.num_scheduled_tokens[index]
    return bool(done >= batch.prefill_len_np[index])
