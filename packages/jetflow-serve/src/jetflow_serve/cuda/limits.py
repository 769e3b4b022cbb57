"""What trees on a GPU do not take, one line each; beside ``jetflow_serve.refusals``."""

from __future__ import annotations

from jetflow_serve.leading_rows import MOST_ROWS
from jetflow_serve.options import AUTO, ServeOptions
from jetflow_serve.refusals import ServeRefused


def check_gpu(options: ServeOptions, *, nodes: int, runner_v2: bool, mixed_graphs: bool) -> None:
    """Refuses what a GPU does not serve.

    Args:
        options: the user's.
        nodes: most drafted nodes of a request.
        runner_v2: whether vLLM chose its Model Runner V2.
        mixed_graphs: whether vLLM would keep graphs of whole steps that compute prompts too.

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
    if mixed_graphs:
        faults.append(
            "graphs of whole steps with prompts hold no trees: set cudagraph_mode to "
            "FULL_AND_PIECEWISE, FULL_DECODE_ONLY, PIECEWISE or NONE"
        )
    if options.budget == AUTO:
        faults.append("not served on a GPU by this version: budget auto (give a number)")
    if options.max_children is not None:
        faults.append("not served on a GPU by this version: max_children (leave it out)")
    if faults:
        raise ServeRefused("; ".join(faults))
