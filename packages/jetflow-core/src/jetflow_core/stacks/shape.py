"""The sizes of a decoder stack, from a transformers config or given by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jetflow_core.support import UnsupportedTargetError, check_supported


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertShape:
    """The experts of a layer that routes each row to some of them.

    Raises:
        ValueError: on construction: a size is below 1, or more experts are chosen than there are.
    """

    count: int
    """Experts of a layer."""
    chosen: int
    """Experts of a row."""
    intermediate_size: int
    """Hidden width of each expert."""
    normalised: bool = True
    """Whether the chosen experts' probabilities are divided by their sum."""
    dense_layers: tuple[int, ...] = ()
    """Layers that have one ordinary MLP in the experts' place."""

    def __post_init__(self) -> None:
        _check_positive(self, ("count", "chosen", "intermediate_size"))
        if self.chosen > self.count:
            raise ValueError(
                f"chosen is {self.chosen}, it must be at most the {self.count} experts"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class StackShape:
    """Everything about a decoder of the Llama family that is not a weight or its type.

    Raises:
        ValueError: on construction, naming a size that is out of range.
    """

    vocab_size: int
    """Rows of the output matrix, padding included."""
    hidden_size: int
    """Width of a layer's output."""
    intermediate_size: int
    """Hidden width of an ordinary MLP; unused if every layer has experts."""
    num_layers: int
    """Decoder layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads."""
    head_dim: int
    """Width of a head; need not be `hidden_size / num_heads`."""
    max_positions: int
    """Positions the model was made for."""
    rope_theta: float
    """Base of the rotation's frequencies, before any scaling."""
    rms_norm_eps: float = 1e-6
    """What every norm adds to the mean square."""
    tied: bool = False
    """Whether input and output embeddings are one matrix."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases."""
    output_bias: bool = False
    """Whether the projection behind the attention has one."""
    head_norms: bool = False
    """Whether each query and key head is normed."""
    experts: ExpertShape | None = None
    """None: every layer has an ordinary MLP."""

    def __post_init__(self) -> None:
        _check_positive(self, _SIZES)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads is {self.num_heads}, it must be a multiple of the {self.num_kv_heads} "
                "key heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim is {self.head_dim}, it must be even")
        for name in ("rope_theta", "rms_norm_eps"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}, it must be above 0 and finite")

    @property
    def q_width(self) -> int:
        """Columns of all query heads."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of all key heads, or of all value heads."""
        return self.num_kv_heads * self.head_dim

    def experts_of(self, layer: int) -> ExpertShape | None:
        """The experts of a layer; None where it has an ordinary MLP."""
        experts = self.experts
        return None if experts is None or layer in experts.dense_layers else experts

    @classmethod
    def from_config(cls, config: Any) -> StackShape:
        """The shape of a transformers config.

        Raises:
            UnsupportedTargetError: a stack would get a model of this config wrong; named.
            ValueError: a size of it is out of range.
        """
        check_stack(config)
        heads = int(config.num_attention_heads)
        own_bias = bool(getattr(config, "attention_bias", False))
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_layers=config.num_hidden_layers,
            num_heads=heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            max_positions=config.max_position_embeddings,
            rope_theta=float(config.rope_parameters["rope_theta"]),
            rms_norm_eps=float(config.rms_norm_eps),
            tied=bool(config.tie_word_embeddings),
            # Qwen2 has these biases whatever its config says, and none behind the attention.
            qkv_bias=config.model_type == "qwen2" or own_bias,
            output_bias=config.model_type != "qwen2" and own_bias,
            head_norms=config.model_type in ("qwen3", "qwen3_moe"),
            experts=_experts(config),
        )


_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
    "head_dim", "max_positions",
)  # fmt: skip


def check_stack(config: Any) -> None:
    """Refuse, by name, a model that a stack would get wrong, from its config alone.

    Raises:
        UnsupportedTargetError: As `check_supported`; or the model has biases in its MLPs,
            another activation than SiLU, or turns only a part of each head.
    """
    check_supported(config)
    name = config.model_type
    if getattr(config, "mlp_bias", False):
        raise UnsupportedTargetError(f"this {name} model has mlp_bias, which no stack has")
    if config.hidden_act not in ("silu", "swish"):
        raise UnsupportedTargetError(
            f"this {name} model has the activation {config.hidden_act!r}; only 'silu' is supported"
        )
    part = (config.rope_parameters or {}).get("partial_rotary_factor", 1.0)
    if part != 1.0:
        raise UnsupportedTargetError(
            f"this {name} model turns {part} of each head; only whole heads are supported"
        )


def _experts(config: Any) -> ExpertShape | None:
    count = getattr(config, "num_experts", 0)
    if config.model_type != "qwen3_moe" or count == 0:
        return None
    step = config.decoder_sparse_step
    dense = tuple(
        layer
        for layer in range(config.num_hidden_layers)
        if layer in config.mlp_only_layers or (layer + 1) % step
    )
    return ExpertShape(
        count=count,
        chosen=config.num_experts_per_tok,
        intermediate_size=config.moe_intermediate_size,
        normalised=bool(config.norm_topk_prob),
        dense_layers=dense,
    )


def _check_positive(holder: object, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(holder, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, it must be a whole number of at least 1")
