"""Candidates of a head at every root of a stored answer, in one pass."""

from __future__ import annotations

import numpy as np
import torch
from jetflow_core.head.model import DraftHead
from jetflow_core.head.proposal import draft_candidates
from jetflow_tree import Candidates
from numpy.typing import NDArray
from torch import Tensor

from jetflow_train.blocks import run_blocks
from jetflow_train.step import autocast, document_mask
from jetflow_train.target import FrozenTarget


def draft_everywhere(
    target: FrozenTarget,
    head: DraftHead,
    embedding: Tensor,
    tokens: NDArray[np.int64],
    first: int,
    *,
    use_path: bool,
) -> tuple[list[Candidates], NDArray[np.int64]]:
    """Candidates at every root from ``first`` to the last but one token.

    Returns:
        One ``Candidates`` a root, and the best token of each depth ``[roots, depth]``.
    """
    device = target.device
    row = torch.from_numpy(tokens).to(device)[None]
    documents = torch.zeros_like(row)
    positions = torch.arange(row.shape[1], device=device)[None]
    anchors = torch.arange(first, row.shape[1] - 1, device=device)[None]
    features, _ = target.capture(
        row, positions, document_mask(documents), head.config.target_layer_ids
    )
    with autocast(device, head):
        hidden = run_blocks(head, features, embedding, row, documents, positions, anchors)[0]
    logits = hidden.to(target.dtype) @ target.lm_head.T
    wide = logits if logits.dtype == torch.float64 else logits.float()
    roots = row[0, anchors[0]]
    if use_path or head.path is None:
        chosen, table = draft_candidates(head, embedding, roots, hidden.to(embedding.dtype), wide)
    else:
        best, chosen = wide.topk(min(head.config.candidates, wide.shape[-1]), dim=-1)
        table = (best - wide.logsumexp(-1, keepdim=True)).clamp(max=0.0).unsqueeze(2)
    chosen_cpu, table_cpu = chosen.cpu().numpy(), table.double().cpu().numpy()
    drafts = [
        Candidates(tokens=chosen_cpu[i], log_probs=table_cpu[i]) for i in range(len(chosen_cpu))
    ]
    return drafts, chosen_cpu[:, :, 0]
