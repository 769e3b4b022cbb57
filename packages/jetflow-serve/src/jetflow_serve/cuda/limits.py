"""What trees on a GPU do not take, one line each; beside ``jetflow_serve.refusals``."""

from __future__ import annotations

from jetflow_serve.leading_rows import MOST_ROWS
from jetflow_serve.refusals import ServeRefused


def check_gpu(*, nodes: int, runner_v2: bool) -> None:
    """Refuses what a GPU does not serve.

    Args:
        nodes: most drafted nodes of a request.
        runner_v2: whether vLLM chose its Model Runner V2.

    Raises:
        ServeRefused: naming every fault.
    """
    faults = []
    if nodes + 1 > MOST_ROWS:
        faults.append(
            f"trees on a GPU have at most {MOST_ROWS} rows, so num_speculative_tokens is at most "
            f"{MOST_ROWS - 1}; it is {nodes}"
        )
    if not runner_v2:
        faults.append(
            "trees on a GPU need Model Runner V2, and vLLM chose V1: leave "
            "VLLM_USE_V2_MODEL_RUNNER unset, or see its log for what V2 lacks"
        )
    if faults:
        raise ServeRefused("; ".join(faults))
