"""JetFlow and vLLM: trees in vLLM's engine, which of its hooks they need, and exported heads.

What imports vLLM lies in the folders ``engine``, ``v1`` and ``v2`` and in the plugin; the rest runs
without it.
"""

from jetflow_serve.check import MissingHook, VllmNotUsable, check_hooks, require_hooks
from jetflow_serve.hook import Hook
from jetflow_serve.hooks import HOOKS
from jetflow_serve.installed import InstalledVllm, find_vllm
from jetflow_serve.options import OptionError, ServeOptions, read_options
from jetflow_serve.refusals import ServeRefused

__all__ = [
    "HOOKS",
    "Hook",
    "InstalledVllm",
    "MissingHook",
    "OptionError",
    "ServeOptions",
    "ServeRefused",
    "VllmNotUsable",
    "check_hooks",
    "find_vllm",
    "read_options",
    "require_hooks",
]
