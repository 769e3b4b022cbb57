"""What a drafter is told: exactly the committed rows, with the target's features at them."""

from collections.abc import Sequence

import torch
from jetflow_core.drafters.probe import ProbeDrafter, random_tree
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.sampling import SamplingParams
from jetflow_core.session import CachedSession
from jetflow_core.target import Target
from jetflow_tree import Candidates
from torch import Tensor

VOCAB, DEPTH, COUNT = 128, 7, 40
PROMPTS = ((3, 14, 15, 92, 65, 35), (9,), (111, 5, 77, 20))


class Watched:
    """A probe that keeps what it is told; one request a slot."""

    def __init__(self, probe: ProbeDrafter) -> None:
        self._probe, self.max_depth = probe, probe.max_depth
        self.tokens: dict[int, list[int]] = {}
        self.features: dict[int, list[Tensor]] = {}

    def begin(self, slot: int, prompt: Sequence[int]) -> None:
        assert slot not in self.tokens
        self.tokens[slot], self.features[slot] = [], []
        self._probe.begin(slot, prompt)

    def observe(self, slot: int, tokens: Sequence[int], features: Tensor) -> None:
        assert len(tokens) == len(features)
        self.tokens[slot] += tokens
        self.features[slot].append(features.clone())
        self._probe.observe(slot, tokens, features)

    def propose(self, slots: Sequence[int], roots: Sequence[int], depth: int) -> list[Candidates]:
        return self._probe.propose(slots, roots, depth)


def test_the_drafter_gets_the_features_of_the_accepted_rows(tiny_target: Target) -> None:
    """They are those of one prefill of the whole text, also where the rows lay far apart."""
    engine, params = Engine(tiny_target, None), SamplingParams(max_new_tokens=COUNT)
    plain = engine.generate_batch(PROMPTS, params, TreeOptions(budget=1))
    answers = {result.prompt: result.tokens for result in plain}
    watched = Watched(random_tree(answers, VOCAB, depth=DEPTH))
    found = engine.generate_batch(
        PROMPTS, params, TreeOptions(budget=64), num_slots=len(PROMPTS), drafter=watched
    )
    scattered = 0
    for slot, result in enumerate(found):
        assert result.tokens == answers[result.prompt]
        kept = sum(len(each.picks) for each in result.rounds[:-1])
        text = [*result.prompt, *result.tokens]
        # Of a request that has ended nobody needs the last rows.
        assert watched.tokens[slot] == text[: len(result.prompt) - 1 + kept]
        session = CachedSession(tiny_target, capacity=len(text))
        expected = session.prefill(0, [*watched.tokens[slot], 0]).features
        torch.testing.assert_close(
            torch.cat(watched.features[slot]), expected, rtol=0, atol=1e-9
        )  # fmt: skip
        scattered += sum(
            each.accepted.nodes != tuple(range(1, len(each.accepted.nodes) + 1))
            for each in result.rounds[:-1]
        )
    assert scattered > 5
