"""One pass of the head for all requests of a step: committed rows in, candidates out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jetflow_tree import Candidates
from torch import Tensor

from jetflow_serve.blocks import Blocks, lay_out
from jetflow_serve.context_rows import ContextRows
from jetflow_serve.drafts import Ask
from jetflow_serve.engine.draft_model import JetFlowDraftModel, block_rows

RunBlocks = Callable[[Tensor, Blocks, Tensor], Tensor]
"""Hidden states ``[S, hidden]`` of block rows, given these rows, the blocks and their tables."""


class NonFiniteDraft(RuntimeError):
    """The draft head gave scores that are not finite; the message names the requests."""


def features_in_order(tapped: Sequence[Tensor], layers: Sequence[int], rows: int) -> Tensor:
    """``[rows, taps * hidden]`` in the head's order; vLLM taps layers as they run."""
    ran = sorted(layers)
    return torch.cat([tapped[ran.index(layer)][:rows] for layer in layers], dim=-1)


def observe(
    model: JetFlowDraftModel, features: Tensor, rows: ContextRows, slot_mapping: Tensor
) -> Tensor:
    """Takes the committed rows of a step into the head's cache.

    Args:
        model: the draft model.
        features: ``[T, taps * hidden]`` of all rows of the batch.
        rows: which of them are committed.
        slot_mapping: int64 ``[T]``, the cache slots of the batch's rows.

    Returns:
        ``[R, hidden]``, the last fused row of each request.
    """
    fused = model.combine_hidden_states(features[torch.from_numpy(rows.sources)])
    model.precompute_and_store_context_kv(
        fused, torch.from_numpy(rows.positions), slot_mapping[torch.from_numpy(rows.places)]
    )
    return fused[torch.from_numpy(rows.ends) - 1]


def draft(
    model: JetFlowDraftModel,
    asks: Sequence[Ask],
    last: Tensor,
    tables: Tensor,
    block: int,
    run: RunBlocks,
) -> list[Candidates]:
    """Candidates of each request.

    Args:
        model: the draft model.
        asks: whom to draft for.
        last: ``[R, hidden]`` from ``observe``, all requests of the batch.
        tables: int ``[R, blocks]``, their cache blocks.
        block: rows of a cache block.
        run: runs the head's layers over block rows, as the model runner at hand does it.

    Raises:
        NonFiniteDraft: a score is NaN or infinite.
    """
    if not asks:
        return []
    head = model.head
    deepest = max(ask.depth for ask in asks)
    counts = [head.num_slots(ask.depth) for ask in asks]
    index = torch.tensor([ask.index for ask in asks])
    roots = torch.tensor([ask.root for ask in asks])
    own = tables[index]
    blocks = lay_out([ask.place for ask in asks], counts, own, block)
    rows = block_rows(model, roots, last[index], deepest)
    hidden = run(rows[blocks.taken], blocks, own)
    wide = hidden.new_zeros(rows.shape).masked_scatter_(blocks.taken[..., None], hidden)
    tokens, scores = model.candidates(roots, head.depth_rows(wide, deepest))
    return _as_candidates(asks, tokens, scores.double())


def _as_candidates(asks: Sequence[Ask], tokens: Tensor, scores: Tensor) -> list[Candidates]:
    drafts = []
    for ask, ids, table in zip(asks, tokens, scores, strict=True):
        own = table[: ask.depth]
        if own.isnan().any():
            raise NonFiniteDraft(f"request {ask.request}: the head's scores are not finite")
        drafts.append(Candidates(ids[: ask.depth].numpy(), own.numpy()))
    return drafts
