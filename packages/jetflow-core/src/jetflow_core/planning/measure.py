"""Timing a target and a drafter on this device, for the planner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jetflow_tree import Tree

from jetflow_core.planning.costs import StepCosts, measure_steps
from jetflow_core.protocols import Drafter, TargetSession

_CPU_ROWS = (1, 4, 8, 16, 32)
_GPU_ROWS = (1, 8, 16, 32, 64, 128, 256)
_DEPTHS = (1, 4, 8)
_CONTEXT = 128
_FANOUT = 8


def measured_costs(
    session: TargetSession, drafter: Drafter, *, device_type: str, context_length: int
) -> tuple[StepCosts, StepCosts]:
    """Costs of a draft by depth and of a pass by rows, at a short context.

    Takes 1 to 2 seconds on a CPU with a small target. Uses and releases slot 0.

    Args:
        session: the target, slot 0 free.
        drafter: drafts for the same slot.
        device_type: "cpu" or another; a GPU is measured at more sizes.
        context_length: most tokens of a request; the measurement stays below.
    """
    prompt = [1] * max(2, min(_CONTEXT, context_length - 2))
    features = session.prefill(0, prompt).features
    drafter.begin(0, prompt)
    drafter.observe(0, prompt[:-1], features)
    rows: Sequence[int] = _CPU_ROWS if device_type == "cpu" else _GPU_ROWS
    try:
        verify = measure_steps(lambda n: _pass(session, n), rows, repeats=3)
        depths = sorted({*(d for d in _DEPTHS if d < drafter.max_depth), drafter.max_depth})
        draft = measure_steps(lambda depth: _draft(drafter, depth), depths, repeats=3)
    finally:
        session.release(0)
    return draft, verify


def _pass(session: TargetSession, rows: int) -> None:
    # Any shape costs the same; this one needs few tokens and few positions.
    row = np.arange(rows) - 1
    bush = Tree.from_parents(row % _FANOUT, row // _FANOUT)
    output = session.verify([0], [bush])[0]
    # Reading the result waits for the device.
    output.logits.argmax(-1).tolist()


def _draft(drafter: Drafter, depth: int) -> None:
    drafter.propose([0], [1], depth)
