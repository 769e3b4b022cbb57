"""vLLM's general plugin: tells vLLM, in every process, which class drafts with JetFlow's heads.

It registers names and replaces nothing, so an engine without a head of ours runs as before.
"""

from __future__ import annotations

from jetflow_core.head.published import OWN_ARCHITECTURE


def register() -> None:
    """Registers the draft model; called by vLLM, more than once in a process."""
    from vllm import ModelRegistry

    # The class, not its name: vLLM would start a process of its own to look at a named one.
    from jetflow_serve.engine.draft_model import JetFlowDraftModel

    # vLLM checks the plain name first and then puts its method's name before it.
    known = ModelRegistry.get_supported_archs()
    for name in (OWN_ARCHITECTURE, f"DFlash{OWN_ARCHITECTURE}"):
        if name not in known:
            ModelRegistry.register_model(name, JetFlowDraftModel)
