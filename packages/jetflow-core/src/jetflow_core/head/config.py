"""What a draft head is made of: one frozen description that every other part reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from jetflow_core.head.values import HeadConfigError, flag, positive, real, shown, whole

__all__ = ["BOUNDS", "HeadConfig", "HeadConfigError"]

# Far beyond any head, and small enough that no product of two overflows and no tensor of them is
# made before the files have been looked at.
BOUNDS = {
    "hidden_size": (1, 2**20),
    "intermediate_size": (1, 2**22),
    "num_layers": (1, 1024),
    "num_heads": (1, 2**14),
    "num_kv_heads": (1, 2**14),
    "head_dim": (2, 2**14),
    "vocab_size": (1, 2**24),
    "block_size": (1, 1024),
    "num_target_layers": (1, 4096),
    "max_position_embeddings": (1, 2**31),
    "path_rank": (0, 2**14),
    # The path term's table holds the square of it for each depth.
    "candidates": (1, 1024),
    "candidate_pool": (0, 2**14),
    "depth_offset_rows": (0, 1024),
}
"""Least and most of each whole number of a head's description."""

_FLAGS = (
    "causal", "draft_shift", "learned_mask", "normalize_taps", "path_context", "prefix_filled",
    "input_bridge",
)  # fmt: skip


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
    input_bridge: bool = False
    """Every slot's input gets a map of the root and of the context's last fused row."""
    path_rank: int = 0
    """Rank of the path term; 0: a child's score does not depend on its parent."""
    path_context: bool = False
    """The path term also reads the hidden state of the depth it scores."""
    candidates: int = 16
    """Candidates kept at each depth."""
    candidate_pool: int = 0
    """Best tokens of a depth among which its candidates are chosen by their chance along the
    drafted paths; 0: the depth's own best are taken."""
    score_temperatures: tuple[tuple[float, float], ...] = ()
    """Pairs, rising by the first: a request's temperature, and the temperature at which scores are
    read for it (``head.scores``); (): scores are read as they are."""
    prefix_filled: bool = False
    """Trained with blocks whose first slots hold true tokens: what ``head.second_pass`` needs."""
    depth_offset_rows: int = field(default=0)
    """Learned offsets added to the block's slots; 0 or ``block_size``."""

    def __post_init__(self) -> None:
        for name in _FLAGS:
            flag(name, getattr(self, name))
        for name, (least, most) in BOUNDS.items():
            whole(name, getattr(self, name), least, most)
        whole("block_size", self.block_size, 1 if self.draft_shift else 2, BOUNDS["block_size"][1])
        positive("rms_norm_eps", self.rms_norm_eps, 1.0)
        positive("rope_theta", self.rope_theta)
        if self.num_heads % self.num_kv_heads:
            raise HeadConfigError(
                f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise HeadConfigError(f"head_dim {self.head_dim} is odd; rotary positions need pairs")
        self._check_taps()
        self._check_score_temperatures()
        if self.learned_mask == (self.mask_token_id is not None):
            raise HeadConfigError(
                "a head has either a learned mask vector or a mask_token_id; got "
                f"learned_mask={self.learned_mask}, mask_token_id={self.mask_token_id}"
            )
        if self.mask_token_id is not None:
            whole("mask_token_id", self.mask_token_id, 0, self.vocab_size - 1)
        for name in ("path_context", "candidate_pool"):
            if getattr(self, name) and not self.path_rank:
                raise HeadConfigError(
                    f"{name} {getattr(self, name)} needs a path term: path_rank is 0"
                )
        if self.prefix_filled and (not self.causal or self.draft_shift or self.block_size < 3):
            raise HeadConfigError(
                "prefix_filled needs a causal head without draft_shift and a block_size of at "
                f"least 3; got causal={self.causal}, draft_shift={self.draft_shift}, "
                f"block_size={self.block_size}"
            )
        if 0 < self.candidate_pool < self.candidates:
            raise HeadConfigError(
                f"candidate_pool {self.candidate_pool} is neither 0 nor at least candidates "
                f"{self.candidates}"
            )
        if self.depth_offset_rows not in (0, self.block_size):
            raise HeadConfigError(
                f"depth_offset_rows {self.depth_offset_rows} is neither 0 nor block_size "
                f"{self.block_size}"
            )

    def _check_taps(self) -> None:
        if not isinstance(self.target_layer_ids, tuple):
            raise HeadConfigError(
                f"target_layer_ids must be a tuple, got {shown(self.target_layer_ids)}"
            )
        if not self.target_layer_ids:
            raise HeadConfigError(
                "target_layer_ids is empty: the config must list the tapped target layers "
                f"(0..{self.num_target_layers - 1}); they are never guessed"
            )
        for layer in self.target_layer_ids:
            whole("target_layer_ids: each", layer, 0, self.num_target_layers - 1)
        if len(set(self.target_layer_ids)) != len(self.target_layer_ids):
            raise HeadConfigError(f"target_layer_ids repeats a layer: {self.target_layer_ids}")

    def _check_score_temperatures(self) -> None:
        pairs = self.score_temperatures
        if not isinstance(pairs, tuple) or any(
            not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs
        ):
            raise HeadConfigError(f"score_temperatures must be pairs, got {shown(pairs)}")
        for asked, fitted in pairs:
            real("score_temperatures: each request's", asked, 0.0, 100.0)
            real("score_temperatures: each score's", fitted, 0.01, 100.0)
        if any(one >= other for (one, _), (other, _) in pairwise(pairs)):
            raise HeadConfigError(
                f"score_temperatures must rise by the request's temperature, got {shown(pairs)}"
            )

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
