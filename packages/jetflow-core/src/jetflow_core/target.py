"""A frozen transformers causal LM that runs whole trees."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from jetflow_core.attention import IMPLEMENTATION, Pass
from jetflow_core.dtypes import default_dtype
from jetflow_core.few_rows import multiply_few_rows_fast
from jetflow_core.loading import (
    TargetLoadError,
    check_sizes,
    load_config,
    load_model,
    load_tokenizer,
    one_line,
)
from jetflow_core.support import check_supported


class Target:
    """The model whose text is to be reproduced, with the layers that a drafter taps.

    A target has no state between passes; sessions hold the caches.

    Attributes:
        taps: Layers whose own outputs make the features, in this order.
        tokenizer_source: Folder or hub name of the tokenizer, or None.
    """

    def __init__(self, model: Any, taps: Sequence[int], tokenizer_source: str | None) -> None:
        """Use `load` or `from_model`."""
        if model.device.type == "cpu":
            multiply_few_rows_fast(model)
        self._model = model
        self._base = model.base_model
        self._head: nn.Linear = model.get_output_embeddings()
        self.taps = _checked_taps(taps, self.num_layers)
        self.tokenizer_source = tokenizer_source
        for layer in set(self.taps):
            hook = partial(_record, layer)
            self._base.layers[layer].register_forward_hook(hook, with_kwargs=True)

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        taps: Sequence[int] = (),
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Load a target, and refuse it before its weights are read if it cannot be one.

        Args:
            source: Folder of a checkpoint, or its name on the hub.
            taps: Layers whose outputs make the features.
            device: Where it runs.
            dtype: Type of weights, cache and logits; None: `default_dtype(device)`.

        Raises:
            UnsupportedTargetError: A model of this kind cannot be verified in one pass.
            TargetLoadError: Nothing loadable at `source`; the message says why in one line.
            ValueError: A tap is no layer of the model.
        """
        source = str(source)
        dtype = default_dtype(device) if dtype is None else dtype
        config = load_config(source)
        with one_line(source):
            check_supported(config)
            check_sizes(config)
        _checked_taps(taps, config.num_hidden_layers)
        model = load_model(source, config, dtype=dtype, attention=IMPLEMENTATION)
        model.requires_grad_(False).eval().to(device)
        _check_finite(model, source)
        return cls(model, taps, source)

    @classmethod
    def from_model(
        cls, model: Any, *, taps: Sequence[int] = (), tokenizer_source: str | None = None
    ) -> Self:
        """Take over a loaded transformers causal LM.

        Its attention is replaced, perhaps its linear layers too, and it is set to evaluation
        mode: afterwards it runs only through sessions.

        Raises:
            UnsupportedTargetError: A model of this kind cannot be verified in one pass.
            ValueError: A tap is no layer of the model.
        """
        check_supported(model.config)
        _checked_taps(taps, model.config.num_hidden_layers)
        model.eval().set_attn_implementation(IMPLEMENTATION)
        return cls(model, taps, tokenizer_source)

    @property
    def config(self) -> Any:
        """The transformers config."""
        return self._model.config

    @property
    def hidden_size(self) -> int:
        """Width of a layer's output."""
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Rows of `lm_head`, padding included."""
        return int(self._head.weight.shape[0])

    @property
    def num_layers(self) -> int:
        """Decoder layers."""
        return int(self.config.num_hidden_layers)

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return int(self.config.num_attention_heads)

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads."""
        return int(self.config.num_key_value_heads)

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return int(getattr(self.config, "head_dim", None) or self.hidden_size // self.num_heads)

    @property
    def context_length(self) -> int:
        """Positions the model has: tokens of prompt and answer together."""
        return int(self.config.max_position_embeddings)

    @property
    def feature_size(self) -> int:
        """Width of a feature row: taps times hidden size."""
        return len(self.taps) * self.hidden_size

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, cache, logits and features."""
        return self._head.weight.dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._head.weight.device

    @property
    def embed_tokens(self) -> Tensor:
        """Input embeddings `[vocab, hidden]`."""
        weight: Tensor = self._model.get_input_embeddings().weight
        return weight

    @property
    def lm_head(self) -> Tensor:
        """Output embeddings `[vocab, hidden]`, the same tensor as the input's if tied."""
        return self._head.weight

    @property
    def generation_config(self) -> Any:
        """The transformers generation config, or None; only its special tokens count here."""
        return getattr(self._model, "generation_config", None)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer, as the model's generation config lists them."""
        ids = getattr(self.generation_config, "eos_token_id", None)
        ids = self.config.eos_token_id if ids is None else ids
        return () if ids is None else tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, loaded at first use.

        Raises:
            TargetLoadError: It cannot be read.
            ValueError: The target came without one.
        """
        if self.tokenizer_source is None:
            raise ValueError("this target was made from a model alone and has no tokenizer")
        return load_tokenizer(self.tokenizer_source)

    def run(self, tokens: Tensor, positions: Tensor, context: Pass) -> tuple[Tensor, Tensor]:
        """One pass over packed rows.

        Args:
            tokens: `[rows]` int64 on the target's device.
            positions: `[rows]` int64, same device.
            context: Which rows are whose, what they see, and the cache.

        Returns:
            The hidden states after the final norm, `[rows, hidden]`, for `logits`; and the
            features `[rows, feature_size]`.
        """
        with torch.no_grad():
            hidden = self._base(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                jetflow=context,
            ).last_hidden_state[0]
            tapped = [context.outputs[layer] for layer in self.taps]
            features = torch.cat(tapped, dim=1) if tapped else hidden[:, :0]
        return hidden, features

    def logits(self, hidden: Tensor) -> Tensor:
        """`[rows, vocab]` of hidden states `[rows, hidden]` after the final norm."""
        with torch.no_grad():
            return self._head(hidden)


def _record(layer: int, _module: nn.Module, _args: Any, kwargs: Any, output: Tensor) -> None:
    # The pass travels through transformers as a keyword, so that nothing is kept in the model.
    kwargs["jetflow"].outputs[layer] = output[0]


def _checked_taps(taps: Sequence[int], num_layers: int) -> tuple[int, ...]:
    for tap in taps:
        if not 0 <= tap < num_layers:
            raise ValueError(f"tap {tap} is no layer of a model with layers 0 to {num_layers - 1}")
    return tuple(taps)


def _check_finite(model: Any, source: str) -> None:
    # Seen here, or the drafter that shares these matrices would be blamed for their values.
    for name, part in (
        ("input embeddings", model.get_input_embeddings()),
        ("lm_head", model.get_output_embeddings()),
    ):
        if not bool(part.weight.isfinite().all()):
            raise TargetLoadError(
                f"cannot load a target from {source!r}: its {name} hold values that are not finite"
            )
