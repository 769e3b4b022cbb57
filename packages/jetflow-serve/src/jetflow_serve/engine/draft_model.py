"""JetFlow's draft head as a vLLM model: the head itself, its keys and values in vLLM's cache.

All of the head's arithmetic is jetflow-core's, so a head drafts here what it drafts everywhere.
Only its attention is vLLM's: it reads and writes the paged cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jetflow_core.head.checkpoint import load_head
from jetflow_core.head.model import DraftHead
from jetflow_core.head.proposal import draft_candidates
from torch import Tensor, nn
from vllm.config import VllmConfig, get_current_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.logits_processor import LogitsProcessor

from jetflow_serve.engine.settings import read_settings


class PagedContext:
    """The context of blocks in vLLM's cache; rows of all requests stand one behind the other.

    Args:
        layers: vLLM's attention of each of the head's layers.
    """

    def __init__(self, layers: nn.ModuleList) -> None:
        self._layers = layers

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As ``jetflow_core.head.context.BlockContext``, for one block of all rows."""
        flat = [part[0].transpose(0, 1).flatten(1) for part in (query, keys, values)]
        attended: Tensor = self._layers[layer](*flat)
        return attended[None]


class _Shared(nn.Module):
    """Holds the target's embedding, under the name that vLLM looks for."""

    embed_tokens: nn.Module


class JetFlowDraftModel(nn.Module):
    """A draft head that vLLM loads, shares the target's embedding with, and runs."""

    # vLLM shares the target's matrices with models that say they have none of their own.
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        settings = read_settings(get_current_vllm_config())
        config, model = settings.head, vllm_config.model_config
        self.folder = settings.folder
        self.config = vllm_config.speculative_config.draft_model_config.hf_config
        self.model = _Shared()
        self.lm_head = nn.Identity()
        self.head = DraftHead(config).to(model.dtype).requires_grad_(False)
        first = model.get_total_num_hidden_layers()
        self.attention = nn.ModuleList(
            Attention(
                config.num_heads,
                config.head_dim,
                config.head_dim**-0.5,
                num_kv_heads=config.num_kv_heads,
                cache_config=get_current_vllm_config().cache_config,
                prefix=f"{prefix}.layers.{first + number}.self_attn.attn".lstrip("."),
            )
            for number in range(config.num_layers)
        )
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Reads the head by jetflow-core's own loader, which knows all its storage."""
        for _ in weights:
            # vLLM tells how long loading took by the end of this.
            pass
        dtype = next(self.head.parameters()).dtype
        self.head.load_state_dict(load_head(self.folder, dtype=dtype).head.state_dict())

    @property
    def embedding(self) -> Tensor:
        """The target's embedding ``[vocab, hidden]``."""
        weight = self.model.embed_tokens.weight
        assert isinstance(weight, Tensor)
        return weight[: self.head.config.vocab_size]

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Rows of the target's embedding."""
        return self.embedding[input_ids]

    def combine_hidden_states(self, hidden_states: Tensor) -> Tensor:
        """Fused context rows ``[T, hidden]`` from the target's features ``[T, taps * hidden]``."""
        return self.head.fuse(hidden_states)

    def precompute_and_store_context_kv(
        self,
        context_states: Tensor,
        context_positions: Tensor,
        context_slot_mapping: Tensor | None = None,
    ) -> None:
        """Puts the keys and values of fused rows into the cache of each layer."""
        pairs = self.head.context_keys_values(context_states[None], context_positions[None])
        if context_slot_mapping is None:
            return
        layers: Iterable[Any] = self.attention
        for layer, pair in zip(layers, pairs, strict=True):
            keys, values = (part[0].transpose(0, 1).contiguous() for part in pair)
            layer.impl.do_kv_cache_update(layer, keys, values, layer.kv_cache, context_slot_mapping)

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Hidden states ``[rows, hidden]`` of block rows, given by their input vectors."""
        if inputs_embeds is None:
            assert input_ids is not None
            inputs_embeds = self.embed_input_ids(input_ids)
        return self.head.run_block(
            inputs_embeds[None], positions[None], PagedContext(self.attention)
        )[0]

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits ``[rows, vocab]`` by the target's output matrix."""
        logits: Tensor = self.logits_processor(self.lm_head, hidden_states)
        return logits

    def candidates(self, roots: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Candidates of each depth: see ``draft_candidates``.

        Args:
            roots: int64 ``[R]``.
            hidden: ``[R, D, hidden]``, the rows of depths 1..D.
        """
        requests, depth, width = hidden.shape
        logits = self.compute_logits(hidden.reshape(-1, width)).float()
        return draft_candidates(
            self.head, self.embedding, roots, hidden, logits.view(requests, depth, -1)
        )


def block_rows(model: JetFlowDraftModel, roots: Tensor, last: Tensor, depth: int) -> Tensor:
    """Input rows ``[R, slots, hidden]`` of blocks.

    Args:
        model: the draft model.
        roots: int64 ``[R]``, the last committed tokens.
        last: ``[R, hidden]``, the last fused row of each context.
        depth: deepest depth wanted.
    """
    block = model.head.block_input(roots, model.embedding, depth)
    return model.head.bridged(block, model.embedding[roots], last)
