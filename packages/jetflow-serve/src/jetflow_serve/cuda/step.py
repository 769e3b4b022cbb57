"""What a step with trees knows on a GPU, shared by the parts that vLLM builds one by one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jetflow_core.rounds import AcceptedBatch, RoundOps
from torch import Tensor

from jetflow_serve.cuda.lines import Lines, TreeLines, walk_lines
from jetflow_serve.cuda.records import Records
from jetflow_serve.engine.requests import choice_of
from jetflow_serve.reasons import Choice


@dataclass(slots=True)
class DeviceStep:
    """State of one model runner; of a batch's requests everything stays on the device."""

    ops: RoundOps
    trees: TreeLines
    records: Records
    depth: int
    """Deepest depth that is drafted."""
    computed: Tensor
    """int32 by request slot, vLLM's own: committed rows of each request."""
    choices: dict[str, tuple[Choice, float]] = field(default_factory=dict)
    """How each running request is drafted for, and its temperature."""
    planned: dict[str, int] = field(default_factory=dict)
    """Nodes of each request's newest tree; some may be padding."""
    scheduled: list[int] = field(default_factory=list)
    """Rows of each request of the batch."""
    drafted: list[bool] = field(default_factory=list)
    """Which of them are the rows of a tree."""
    contexts: Any = None
    """int32 ``[R]``, cached rows of each before the step."""
    lines: Lines | None = None
    paths: AcceptedBatch | None = None
    """What is kept of the trees; None until they are walked, and in a step without any."""

    def add(self, request: str, params: Any) -> None:
        """A request begins."""
        self.choices[request] = (choice_of(params), params.temperature)

    def forget(self, request: str) -> None:
        """Drops a request."""
        self.choices.pop(request, None)
        self.planned.pop(request, None)

    def begin(self, batch: Any) -> None:
        """A step begins.

        Args:
            batch: vLLM's ``InputBatch``.
        """
        count = batch.num_reqs
        self.scheduled = batch.num_scheduled_tokens[:count].tolist()
        drafts = batch.num_draft_tokens_per_req
        self.drafted = [False] * count if drafts is None else (drafts[:count] > 0).tolist()
        device = batch.seq_lens.device
        rows, trees = torch.tensor([self.scheduled, self.drafted], dtype=torch.int32).to(device)
        self.contexts = (batch.seq_lens[:count] - rows).clamp(min=0)
        self.lines = self.trees.take(batch.idx_mapping[:count], rows, trees.bool())
        self.paths = None

    def walk(self, picks: Tensor, starts: Tensor, invalid: Tensor | None) -> AcceptedBatch:
        """Walks the trees of the batch; arguments as of ``walk_lines``."""
        assert self.lines is not None
        self.paths = walk_lines(
            self.ops, self.lines, picks, starts, depth=self.depth, invalid=invalid
        )
        self.records.walked(self.lines, self.paths, self.drafted)
        return self.paths
