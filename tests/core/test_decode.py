"""The decode loop gives the target's own text, whatever drafts for it.

Plain text comes from transformers' own attention and greedy search, apart from our loop.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from jetflow_core.decode import ContextTooLong, Round
from jetflow_core.drafters.probe import ProbeDrafter, always_wrong, oracle, random_tree
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target
from jetflow_tree import AllChildren, BestFirst, Candidates, Chain, TreeBuilder

VOCAB, DEPTH = 128, 7
Maker = Callable[..., ProbeDrafter]
MAKERS: tuple[Maker, ...] = (oracle, always_wrong, random_tree)


@pytest.fixture(scope="module")
def plain(tiny_model: Callable[..., Any]) -> Any:
    return tiny_model("qwen3")


@pytest.fixture(scope="module")
def engine(tiny_target: Target) -> Engine:
    return Engine(tiny_target, None)


def _prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 41, (count,), generator=generator).tolist()
    return [tuple(torch.randint(0, VOCAB, (n,), generator=generator).tolist()) for n in lengths]


@pytest.fixture(scope="module")
def answers(
    plain: Any, greedy: Callable[..., tuple[int, ...]]
) -> dict[tuple[int, ...], tuple[int, ...]]:
    return {prompt: greedy(plain, prompt, 30) for prompt in _prompts(4)}


@pytest.mark.parametrize("budget", [1, 2, 16, 64, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", MAKERS)
def test_any_drafter_and_budget_gives_the_targets_own_text(
    engine: Engine, answers: dict[tuple[int, ...], tuple[int, ...]], make: Maker, budget: int
) -> None:
    prompts = list(answers)
    found = engine.generate_batch(
        prompts, SamplingParams(max_new_tokens=30), TreeOptions(budget=budget), num_slots=4,
        drafter=make(answers, VOCAB, depth=DEPTH),
    )  # fmt: skip
    for prompt, result in zip(prompts, found, strict=True):
        assert result.tokens == answers[prompt]
        assert result.finish == "length"
        assert sum(len(r.accepted.nodes) + 1 for r in result.rounds) == len(result.tokens)


def test_the_drafters_do_what_they_are_for(
    engine: Engine, answers: dict[tuple[int, ...], tuple[int, ...]]
) -> None:
    """The identity above means nothing unless rows are accepted, rejected and far apart."""
    taus, gaps = {}, 0
    for make in MAKERS:
        results = engine.generate_batch(
            list(answers), SamplingParams(max_new_tokens=30), TreeOptions(budget=64),
            drafter=make(answers, VOCAB, depth=DEPTH),
        )  # fmt: skip
        rounds = [r for result in results for r in result.rounds]
        taus[make.__name__] = sum(len(r.picks) for r in rounds) / len(rounds)
        gaps += sum(r.accepted.nodes != tuple(range(1, len(r.accepted.nodes) + 1)) for r in rounds)
    assert taus["oracle"] > 6
    assert taus["always_wrong"] == 1
    assert 1.5 < taus["random_tree"] < taus["oracle"]
    assert gaps > 10


@pytest.mark.parametrize("builder", [BestFirst(), AllChildren(3), Chain()])
def test_any_builder_gives_the_targets_own_text(
    engine: Engine, answers: dict[tuple[int, ...], tuple[int, ...]], builder: TreeBuilder
) -> None:
    found = engine.generate_batch(
        list(answers), SamplingParams(max_new_tokens=30),
        TreeOptions(budget=16, builder=builder), drafter=random_tree(answers, VOCAB, depth=DEPTH),
    )  # fmt: skip
    assert [result.tokens for result in found] == list(answers.values())


def test_width_one_is_the_chain(engine: Engine) -> None:
    """Same rows, scores and accepted counts in every round."""
    prompts, params = _prompts(5), SamplingParams(max_new_tokens=40)
    plain = engine.generate_batch(prompts, params, TreeOptions(budget=1))
    answers = {result.prompt: result.tokens for result in plain}

    class Narrow:
        """Lets only the best candidate of each depth through."""

        def __init__(self, inner: ProbeDrafter) -> None:
            self.inner, self.max_depth = inner, inner.max_depth
            self.begin, self.observe = inner.begin, inner.observe

        def propose(
            self, slots: Sequence[int], roots: Sequence[int], depth: int
        ) -> list[Candidates]:
            return [Candidates(c.tokens[:, :1], c.log_probs[:, :, :1])
                    for c in self.inner.propose(slots, roots, depth)]  # fmt: skip

    def run(builder: TreeBuilder, *, narrow: bool) -> list[Round]:
        drafter: Any = random_tree(answers, VOCAB, depth=DEPTH)
        options = TreeOptions(budget=DEPTH + 1, builder=builder)
        if narrow:
            drafter = Narrow(drafter)
        results = engine.generate_batch(list(answers), params, options, drafter=drafter)
        return [r for result in results for r in result.rounds]

    tree, chain = run(BestFirst(), narrow=True), run(Chain(), narrow=False)
    assert len(tree) == len(chain) >= 50
    assert sum(len(one.accepted.nodes) for one in tree) > 20
    for one, two in zip(tree, chain, strict=True):
        assert one.tree.tokens.tolist() == two.tree.tokens.tolist()
        assert one.tree.parents.tolist() == two.tree.parents.tolist()
        assert one.tree.scores.tolist() == two.tree.scores.tolist()
        assert one.accepted == two.accepted


def test_full_acceptance_then_none(
    engine: Engine, plain: Any, greedy: Callable[..., tuple[int, ...]]
) -> None:
    """After a round that keeps its whole path, both caches still lack exactly the root."""
    prompt = _prompts(1, seed=5)[0]
    answer = greedy(plain, prompt, 100)

    class Turncoat(ProbeDrafter):
        def _propose(self, slot: int, depth: int) -> Candidates:
            seen = self.context_length(slot)
            lengths.append((seen, len(prompt) + committed[0] - 1))
            self._right = committed[0] < 10 * (DEPTH + 1)
            return super()._propose(slot, depth)

    lengths: list[tuple[int, int]] = []
    committed = [0]
    drafter = Turncoat({prompt: answer}, vocab_size=VOCAB, depth=DEPTH, width=4, seed=0,
                       right=True, first=True)  # fmt: skip
    tokens: list[int] = []
    sizes = []
    for result in engine.rounds(
        [prompt], [SamplingParams(max_new_tokens=100)], TreeOptions(budget=16), drafter=drafter
    ):
        tokens += [pick.token for pick in result.picks]
        committed[0] = len(tokens)
        sizes.append(len(result.picks))
    assert tuple(tokens) == answer
    assert sizes[:10] == [DEPTH + 1] * 10
    assert set(sizes[10:]) == {1}
    assert all(seen == wanted for seen, wanted in lengths)


@pytest.mark.parametrize("make", MAKERS)
def test_each_request_of_a_batch_is_as_if_alone(
    engine: Engine, answers: dict[tuple[int, ...], tuple[int, ...]], make: Maker
) -> None:
    """More requests than slots: rows come and go, seeded and unseeded ones side by side."""
    prompts = list(answers)
    params = [
        SamplingParams(max_new_tokens=5 + 8 * i, temperature=0.8 if i % 2 else 0.0, seed=i)
        for i in range(len(prompts))
    ]
    options = TreeOptions(budget=16)
    together = engine.generate_batch(
        prompts, params, options, num_slots=3, drafter=make(answers, VOCAB, depth=DEPTH)
    )
    for prompt, rules, result in zip(prompts, params, together, strict=True):
        alone = engine.generate_batch(
            [prompt], rules, options, drafter=make(answers, VOCAB, depth=DEPTH)
        )[0]
        assert result.tokens == alone.tokens
        assert result.finish == alone.finish
        assert len(result.tokens) == rules.max_new_tokens


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_the_end_of_the_context_is_an_ordinary_end(
    tiny_model: Callable[..., Any], greedy: Callable[..., tuple[int, ...]], make: Maker
) -> None:
    context = 64
    model = tiny_model("qwen3", max_position_embeddings=context)
    target = Target.from_model(tiny_model("qwen3", max_position_embeddings=context))
    engine, seen = Engine(target, None), []
    base = target.run
    target.run = lambda tokens, positions, context: (  # type: ignore[method-assign]
        seen.append(int(positions.max())), base(tokens, positions, context)
    )[1]  # fmt: skip
    prompts = [tuple((7 * i + n) % VOCAB for i in range(n)) for n in range(40, 64)]
    answers = {p: greedy(model, p, context - len(p)) for p in prompts}
    found = engine.generate_batch(
        prompts, SamplingParams(max_new_tokens=200), TreeOptions(budget=24), num_slots=24,
        drafter=make(answers, VOCAB, depth=15),
    )  # fmt: skip
    assert [result.tokens for result in found] == list(answers.values())
    assert {result.finish for result in found} == {"length"}
    assert max(seen) < context
    with pytest.raises(ContextTooLong, match=r"64 tokens.*at most 63"):
        engine.generate([1] * 64)


@pytest.mark.parametrize("count", [0, 1, 2, DEPTH, DEPTH + 1, DEPTH + 2])
@pytest.mark.parametrize("budget", [1, 16])
def test_exactly_as_many_tokens_as_asked_for(
    engine: Engine, answers: dict[tuple[int, ...], tuple[int, ...]], count: int, budget: int
) -> None:
    prompt, answer = next(iter(answers.items()))
    result = engine.generate_batch(
        [prompt], SamplingParams(max_new_tokens=count), TreeOptions(budget=budget),
        drafter=oracle(answers, VOCAB, depth=DEPTH),
    )[0]  # fmt: skip
    assert result.tokens == answer[:count]
    assert result.finish == "length"


def test_wrong_use_is_refused_before_any_work(engine: Engine) -> None:
    for budget in (0, -3, 257, True, "many"):
        with pytest.raises(ValueError, match="budget"):
            TreeOptions(budget=budget)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="depth"):
        TreeOptions(depth=0)
    with pytest.raises(ValueError, match="nested"):
        TreeOptions(builder=Chain())
    with pytest.raises(ValueError, match="at least one"):
        engine.generate([])
    with pytest.raises(ValueError, match=r"prompt.*128"):
        engine.generate([128])
    drafter = oracle({(1,): [2, 3]}, VOCAB, depth=3)
    with pytest.raises(ValueError, match=r"depth 5 is out of range.*3"):
        engine.generate_batch([(1,)], None, TreeOptions(budget=8, depth=5), drafter=drafter)
