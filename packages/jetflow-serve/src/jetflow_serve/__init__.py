"""JetFlow and vLLM: which of vLLM's hooks trees need, and heads in the layout vLLM reads.

This version checks an installed vLLM and exports heads; it holds no vLLM plugin yet.
"""

from jetflow_serve.check import MissingHook, VllmNotUsable, check_hooks, require_hooks
from jetflow_serve.hooks import HOOKS, Hook
from jetflow_serve.installed import InstalledVllm, find_vllm

__all__ = [
    "HOOKS",
    "Hook",
    "InstalledVllm",
    "MissingHook",
    "VllmNotUsable",
    "check_hooks",
    "find_vllm",
    "require_hooks",
]
