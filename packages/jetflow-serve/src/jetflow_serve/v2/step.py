"""What a step knows between its preparation and its drafts, shared by the parts of the adapter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jetflow_tree import Accepted
from vllm.sampling_params import SamplingParams

from jetflow_serve import stage
from jetflow_serve.drafts import Drafts

_NOTHING = Accepted((), (), 0)


@dataclass(slots=True)
class Shared:
    """State of one model runner V2; its parts are built by vLLM one by one and meet here."""

    drafts: Drafts
    params: dict[str, SamplingParams] = field(default_factory=dict)
    """Sampling parameters of all running requests."""
    staged: list[stage.Staged | None] = field(default_factory=list)
    contexts: list[int] = field(default_factory=list)
    scheduled: list[int] = field(default_factory=list)
    kept: list[Accepted] = field(default_factory=list)
    """What each request keeps of its tree; nothing where it has none."""

    def begin(self, batch: Any) -> None:
        """Stages the trees of a batch.

        Args:
            batch: vLLM's ``InputBatch``.
        """
        count = batch.num_reqs
        self.scheduled = batch.num_scheduled_tokens[:count].tolist()
        lengths = batch.seq_lens[:count].tolist()
        self.contexts = [
            length - rows for length, rows in zip(lengths, self.scheduled, strict=True)
        ]
        self.staged = stage.stage(
            batch.req_ids, self.scheduled, self.contexts, self._verified(batch), self.drafts.trees
        )
        self.kept = [_NOTHING] * count

    def _verified(self, batch: Any) -> dict[str, Sequence[int]]:
        """The drafted tokens that stand in the batch, by request."""
        drafted = batch.num_draft_tokens_per_req
        if drafted is None:
            return {}
        ends = batch.query_start_loc_np[1:]
        ids = batch.input_ids.numpy()
        return {
            request: ids[end - count : end].tolist()
            for request, count, end in zip(
                batch.req_ids, np.asarray(drafted).tolist(), ends.tolist(), strict=False
            )
            if count
        }
