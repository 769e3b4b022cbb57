"""``jetflow serve check``: whether the installed vLLM has what trees need."""

from __future__ import annotations

from jetflow_serve.check import check_hooks
from jetflow_serve.hooks import HOOKS
from jetflow_serve.installed import find_vllm


def command() -> int:
    """Check that the installed vLLM has every hook that trees need.

    Prints one line for each that is missing; exit code 1 then, 2 if there is no vLLM to check.
    """
    vllm = find_vllm()
    missing = check_hooks(vllm)
    assert vllm is not None
    for entry in missing:
        print(entry)
    count = len(HOOKS[vllm.line])
    print(f"vLLM {vllm.version}: {count - len(missing)} of {count} hooks found")
    return 1 if missing else 0
