"""One pass of the head for all requests of a step: committed rows in, candidates out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jetflow_tree import Candidates
from torch import Tensor
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.spec_decode.dflash import DFlashProposer

from jetflow_serve.blocks import Blocks, lay_out
from jetflow_serve.context_rows import ContextRows
from jetflow_serve.v1.draft_model import JetFlowDraftModel, block_rows


class NonFiniteDraft(RuntimeError):
    """The draft head gave scores that are not finite; the message names the requests."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that is drafted for."""

    request: str
    index: int
    """Its place in the batch."""
    root: int
    """Its last committed token."""
    place: int
    """Where that token stands in the text."""
    depth: int
    """Deepest depth wanted, at least 1."""


class TreeProposer(DFlashProposer):
    """vLLM's DFlash proposer, of which loading and metadata are kept and drafting is ours.

    Args:
        vllm_config: vLLM's configuration.
        device: where the head runs.
        runner: the model runner.
    """

    model: JetFlowDraftModel

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any) -> None:
        super().__init__(vllm_config, device, runner)

    def dummy_run(self, *args: Any, **options: Any) -> None:
        """Nothing: on a CPU no memory is profiled and no graph is captured."""

    @torch.inference_mode()
    def observe(self, features: Tensor, rows: ContextRows, slot_mapping: Tensor) -> Tensor:
        """Takes the committed rows of a step into the head's cache.

        Args:
            features: ``[T, taps * hidden]`` of all rows of the batch.
            rows: which of them are committed.
            slot_mapping: int64 ``[T]``, the cache slots of the batch's rows.

        Returns:
            ``[R, hidden]``, the last fused row of each request.
        """
        fused = self.model.combine_hidden_states(features[torch.from_numpy(rows.sources)])
        self.model.precompute_and_store_context_kv(
            fused,
            torch.from_numpy(rows.positions),
            slot_mapping[torch.from_numpy(rows.places)],
        )
        return fused[torch.from_numpy(rows.ends) - 1]

    @torch.inference_mode()
    def draft(
        self, asks: Sequence[Ask], last: Tensor, common: CommonAttentionMetadata
    ) -> list[Candidates]:
        """Candidates of each request.

        Args:
            asks: whom to draft for.
            last: ``[R, hidden]`` from ``observe``, all requests of the batch.
            common: the step's metadata; its block tables are read.

        Raises:
            NonFiniteDraft: a score is NaN or infinite.
        """
        if not asks:
            return []
        head = self.model.head
        deepest = max(ask.depth for ask in asks)
        counts = [head.num_slots(ask.depth) for ask in asks]
        index = torch.tensor([ask.index for ask in asks])
        roots = torch.tensor([ask.root for ask in asks])
        table = common.block_table_tensor[index]
        blocks = lay_out([ask.place for ask in asks], counts, table, self.block_size)
        rows = block_rows(self.model, roots, last[index], deepest)
        hidden = self._run(rows[blocks.taken], blocks, table, common)
        wide = hidden.new_zeros(rows.shape).masked_scatter_(blocks.taken[..., None], hidden)
        tokens, scores = self.model.candidates(roots, head.depth_rows(wide, deepest))
        return self._as_candidates(asks, tokens, scores.double())

    def _run(
        self, rows: Tensor, blocks: Blocks, table: Tensor, common: CommonAttentionMetadata
    ) -> Tensor:
        metadata = _metadata(common, blocks, table, self.model.head.config.causal)
        _, per_layer = self.build_per_group_and_layer_attn_metadata(metadata)
        slots = {name: blocks.slots for name in per_layer}
        with set_forward_context(
            per_layer, self.vllm_config, num_tokens=rows.shape[0], slot_mapping=slots
        ):
            hidden: Tensor = self.model(None, blocks.positions, rows)
        return hidden

    def _as_candidates(
        self, asks: Sequence[Ask], tokens: Tensor, scores: Tensor
    ) -> list[Candidates]:
        drafts = []
        for ask, ids, table in zip(asks, tokens, scores, strict=True):
            own = table[: ask.depth]
            if own.isnan().any():
                raise NonFiniteDraft(f"request {ask.request}: the head's scores are not finite")
            drafts.append(Candidates(ids[: ask.depth].numpy(), own.numpy()))
        return drafts


def _metadata(
    common: CommonAttentionMetadata, blocks: Blocks, table: Tensor, causal: bool
) -> CommonAttentionMetadata:
    counts = blocks.starts.diff()
    return replace(
        common,
        query_start_loc=blocks.starts,
        query_start_loc_cpu=blocks.starts,
        seq_lens=blocks.lengths,
        seq_lens_cpu_upper_bound=blocks.lengths,
        num_reqs=len(counts),
        num_actual_tokens=int(blocks.starts[-1]),
        max_query_len=int(counts.max()),
        max_seq_len=int(blocks.lengths.max()),
        block_table_tensor=table,
        slot_mapping=blocks.slots,
        causal=causal,
        positions=blocks.positions,
        is_prefilling=None,
    )
