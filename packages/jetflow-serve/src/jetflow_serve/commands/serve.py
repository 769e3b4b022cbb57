"""``jetflow serve MODEL``: vLLM's server with the options of trees filled in and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


def command(
    model: str,
    /,
    *vllm_options: Annotated[str, Parameter(allow_leading_hyphen=True)],
    head: Path,
    budget: int | Literal["auto"] = 64,
    most: int = 64,
    mode: Literal["tree", "chain"] = "tree",
    depth: int | None = None,
    max_children: int | None = None,
    audit: float = 0.0,
) -> int:
    """Serve a target with a draft head through vLLM's OpenAI-compatible server.

    Every option of `vllm serve` may follow; those of speculation are filled in from the ones
    here. Head and target are checked before anything is loaded.

    Args:
        model: The target, as vLLM takes it.
        vllm_options: Options of vLLM, for example --port 8000.
        head: The head's folder.
        budget: Rows of one verify pass, root included; auto chooses them by load, every step.
        most: With budget auto: most rows of one verify pass.
        mode: Draft trees, or chains only.
        depth: Deepest depth that is drafted; as deep as the head goes if left out.
        max_children: Most children of one node; no limit if left out.
        audit: Share of finished requests, 0 to 1, that is decoded again without speculation;
            differences are logged and counted.
    """
    import os
    import sys

    from jetflow_core.head.checkpoint import read_config

    from jetflow_serve.check import require_hooks
    from jetflow_serve.heads import check_target, read_head
    from jetflow_serve.options import ServeOptions
    from jetflow_serve.server import SERVER, server_arguments, tree_section
    from jetflow_serve.thinking import thinking_note

    options = ServeOptions(
        mode=mode, budget=budget, depth=depth, max_children=max_children, audit=audit
    )
    rows = most if budget == "auto" else budget
    arguments = server_arguments(model, str(head), rows, vllm_options, tree_section(options))
    check_target(read_head(head), model)
    note = thinking_note(read_config(head)[1], model, vllm_options)
    if note is not None:
        print(f"jetflow serve: {note}", file=sys.stderr)
    require_hooks()
    sys.stdout.flush()
    # The server takes this process over, so that signals and exit codes are its own.
    os.execv(sys.executable, [sys.executable, "-m", SERVER, *arguments])
