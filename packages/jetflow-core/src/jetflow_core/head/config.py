"""What a draft head is made of: one frozen description that every other part reads."""

from __future__ import annotations

from dataclasses import dataclass, field


class HeadConfigError(ValueError):
    """A head's description is impossible or asks for something this package does not run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadConfig:
    """The shape of a causal parallel draft head and of the target it was trained for.

    The fields a published head carries (Qwen3's own plus its ``dflash_config``) all have a
    place here; the ones below ``# ours`` default to "absent", so that an imported head is
    unchanged.

    Raises:
        HeadConfigError: on construction, naming the field, its value and the allowed range.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    """Slots of one block: the root's and one for each depth (``draft_shift``: one a depth)."""
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    """Tapped target layers, in the order in which their outputs are concatenated."""
    mask_token_id: int | None
    """Token whose frozen embedding fills the slots after the root; None with a learned mask."""
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 40960
    causal: bool = True
    """Slot i of a block sees slots <= i (True) or the whole block (False)."""
    draft_shift: bool = False
    """False: slot d predicts depth d, slot 0 nothing. True: slot d predicts depth d + 1."""
    # ours
    learned_mask: bool = False
    """The head carries its own mask vector instead of borrowing a token's embedding."""
    normalize_taps: bool = False
    """Each tapped layer's output is divided by its own RMS before the fusion."""
    path_rank: int = 0
    """Rank of the path term; 0: a child's score does not depend on its parent."""
    candidates: int = 16
    """Candidates kept at each depth."""
    depth_offset_rows: int = field(default=0)
    """Learned offsets added to the block's slots; 0 or ``block_size``."""

    def __post_init__(self) -> None:
        for name in (
            "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
            "head_dim", "vocab_size", "num_target_layers",
            "max_position_embeddings", "candidates",
        ):  # fmt: skip
            _at_least(name, getattr(self, name), 1)
        _at_least("block_size", self.block_size, 1 if self.draft_shift else 2)
        _at_least("path_rank", self.path_rank, 0)
        if self.num_heads % self.num_kv_heads:
            raise HeadConfigError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise HeadConfigError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")
        self._check_taps()
        if self.learned_mask == (self.mask_token_id is not None):
            raise HeadConfigError(
                "a head has either a learned mask vector or a mask_token_id; got "
                f"learned_mask={self.learned_mask}, mask_token_id={self.mask_token_id}"
            )
        if self.mask_token_id is not None and not 0 <= self.mask_token_id < self.vocab_size:
            raise HeadConfigError(
                f"mask_token_id {self.mask_token_id} is outside the vocabulary "
                f"0..{self.vocab_size - 1}"
            )
        if self.depth_offset_rows not in (0, self.block_size):
            raise HeadConfigError(
                f"depth_offset_rows {self.depth_offset_rows} is neither 0 nor block_size "
                f"{self.block_size}"
            )

    def _check_taps(self) -> None:
        if not self.target_layer_ids:
            raise HeadConfigError(
                "target_layer_ids is empty: the config must list the tapped target layers "
                f"(0..{self.num_target_layers - 1}); they are never guessed"
            )
        for layer in self.target_layer_ids:
            if not 0 <= layer < self.num_target_layers:
                raise HeadConfigError(
                    f"target_layer_ids holds {layer}, allowed are 0..{self.num_target_layers - 1}"
                )
        if len(set(self.target_layer_ids)) != len(self.target_layer_ids):
            raise HeadConfigError(f"target_layer_ids repeats a layer: {self.target_layer_ids}")

    @property
    def max_depth(self) -> int:
        """Deepest depth one block predicts."""
        return self.block_size if self.draft_shift else self.block_size - 1

    @property
    def first_slot(self) -> int:
        """Slot that predicts depth 1."""
        return 0 if self.draft_shift else 1

    @property
    def feature_size(self) -> int:
        """Width of the concatenated target features of one token."""
        return len(self.target_layer_ids) * self.hidden_size


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise HeadConfigError(f"{name} must be a whole number >= {least}, got {value!r}")
