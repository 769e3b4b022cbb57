"""Round drafters that know the answer, or avoid it, and one that keeps a chain of another's tree.

The same three as the plain engine's probes: full acceptance, none, and accepted rows that are far
apart. All they look up lies on the device, so that a graph can hold them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from jetflow_core.bench.engine.drafts_as import DraftsAs
from jetflow_core.rounds import CommittedRows, DraftInputs
from jetflow_core.sampling import SamplingParams

_WIDTH = 4
_STEEP = 3.0
_SPREAD = 1.5
_LINES = 4096
_BELOW_ONE = 1e-3
_BY_PLACE, _BY_DEPTH = 13, 7


class ScriptedRounds:
    """Proposes around the plain answer of each prompt.

    Args:
        answers: plain continuation by prompt.
        kind: "oracle" (always the best candidate), "random" (at a random rank) or "wrong" (never).
        vocab_size: tokens are below it.
        device: of the rounds.
        depth: depths offered.

    Raises:
        ValueError: another kind, or a vocabulary too small for the candidates.
    """

    row_bytes, scratch_rows, reads_features = 0, 0, False

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        kind: str,
        *,
        vocab_size: int,
        device: torch.device,
        depth: int = 15,
    ) -> None:
        if kind not in ("oracle", "random", "wrong"):
            raise ValueError(f"kind {kind!r} is none of oracle, random, wrong")
        if vocab_size < 2 * _WIDTH:
            raise ValueError(f"{_WIDTH} candidates need a vocabulary of {2 * _WIDTH}: {vocab_size}")
        self.depth = depth
        self._answers = {tuple(prompt): tuple(answer) for prompt, answer in answers.items()}
        self._vocab, self._device = vocab_size, device
        self._missed = int(kind == "wrong")
        ranks, scores = _lines(steep=kind == "oracle")
        self._ranks, self._scores = ranks.to(device), scores.to(device)

    @property
    def changes(self) -> Sequence[Tensor]:
        """Nothing: what is known changes between rounds only."""
        return ()

    def allocate(self, *, pages: int, page: int, slots: int) -> None:
        """See ``RoundDrafter``."""
        longest = max(len(prompt) + len(answer) for prompt, answer in self._answers.items())
        self._known = torch.zeros(
            slots, longest + self.depth + 1, dtype=torch.int64, device=self._device
        )

    def begin(self, slot: int, tokens: Sequence[int], params: SamplingParams) -> None:
        """See ``RoundDrafter``."""
        context = tuple(tokens)
        # One prompt may be the beginning of another.
        prompt = max(
            (each for each in self._answers if context[: len(each)] == each), key=len
        )  # fmt: skip
        text = torch.tensor(prompt + self._answers[prompt])
        self._known[slot].fill_(0)
        self._known[slot, : len(text)].copy_(text)

    def move(self, source: int, goal: int) -> None:
        """See ``RoundDrafter``."""
        self._known[goal].copy_(self._known[source])

    def absorb(self, rows: CommittedRows) -> None:
        """Nothing."""

    def propose(self, inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        """See ``RoundDrafter``."""
        steps = torch.arange(1, self.depth + 1, device=self._device)
        places = inputs.prefix_len[:, None] + steps
        right = self._known[inputs.slots].gather(1, places.clamp(max=self._known.shape[1] - 1))
        lines = (places * _BY_PLACE + steps * _BY_DEPTH) % _LINES
        behind = torch.arange(_WIDTH, device=self._device) - self._ranks[lines][..., None]
        # Multiples of a stride, so that none comes twice and only the first is right.
        apart = behind % _WIDTH * (self._vocab // (_WIDTH + 1)) + self._missed
        tokens = (right[..., None] + apart) % self._vocab
        return tokens.int(), self._scores[lines][:, :, None]


def _lines(*, steep: bool) -> tuple[Tensor, Tensor]:
    """Ranks ``[L]`` of the right token, and log-probabilities ``[L, K]``, best first."""
    generator = torch.Generator().manual_seed(0)
    if steep:
        ranks = torch.zeros(_LINES, dtype=torch.int64)
        raw = (-_STEEP * torch.arange(_WIDTH)).expand(_LINES, _WIDTH)
    else:
        ranks = torch.randint(_WIDTH, (_LINES,), generator=generator)
        drawn = _SPREAD * torch.randn(_LINES, _WIDTH, generator=generator)
        raw = drawn.sort(dim=1, descending=True).values
    return ranks, raw.log_softmax(1) - _BELOW_ONE


class ChainOnly(DraftsAs):
    """Another's best child of the best child: its trees without any branch."""

    def propose(self, inputs: DraftInputs) -> tuple[Tensor, Tensor]:
        """See ``RoundDrafter``; of each parent's children only the best."""
        tokens, scores = self._drafter.propose(inputs)
        best = scores.argmax(-1, keepdim=True)
        others = torch.arange(scores.shape[-1], device=scores.device) != best
        return tokens, scores.masked_fill(others, -torch.inf)
