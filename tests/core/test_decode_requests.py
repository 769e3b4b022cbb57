"""What request options mean when a tree is walked, in cases that need more than equal text."""

from collections.abc import Sequence

import pytest
import torch
from jetflow_core.drafters.probe import always_wrong, oracle, random_tree
from jetflow_core.engine import Engine, Generation, TreeOptions
from jetflow_core.sampling import SamplingParams
from jetflow_core.target import Target

VOCAB, DEPTH, COUNT = 128, 7, 32
PROMPT = (3, 14, 15, 92, 65, 35)
MAKERS = (oracle, always_wrong, random_tree)


@pytest.fixture(scope="module")
def engine(tiny_target: Target) -> Engine:
    return Engine(tiny_target, None)


def _plain(engine: Engine, params: SamplingParams) -> Generation:
    return engine.generate(PROMPT, params, TreeOptions(budget=1))


def _with_trees(engine: Engine, params: SamplingParams, expected: Generation) -> list[Generation]:
    answers = {PROMPT: (*expected.tokens, *[0] * DEPTH)}
    return [
        engine.generate_batch(
            [PROMPT], params, TreeOptions(budget=24), drafter=make(answers, VOCAB, depth=DEPTH)
        )[0]
        for make in MAKERS
    ]


def test_penalties_of_either_sign_differ(engine: Engine) -> None:
    texts = {
        _plain(engine, SamplingParams(max_new_tokens=COUNT, frequency_penalty=value)).tokens
        for value in (-2.0, 0.0, 2.0)
    }
    assert len(texts) == 3


def test_one_choice_is_greedy(engine: Engine) -> None:
    greedy = _plain(engine, SamplingParams(max_new_tokens=COUNT))
    for params in (
        SamplingParams(max_new_tokens=COUNT, temperature=1.0, top_k=1),
        SamplingParams(max_new_tokens=COUNT, temperature=1e-4, seed=0),
    ):
        for found in _with_trees(engine, params, greedy):
            assert found.tokens == greedy.tokens


@pytest.mark.parametrize("min_new_tokens", [0, 12])
def test_stop_tokens_end_a_request_inside_an_accepted_run(
    engine: Engine, min_new_tokens: int
) -> None:
    """The token that plain decoding writes at step 7 is declared to be the stop."""
    ordinary = _plain(engine, SamplingParams(max_new_tokens=COUNT)).tokens
    stop = ordinary[7]
    params = SamplingParams(
        max_new_tokens=COUNT, stop_token_ids=(stop,), min_new_tokens=min_new_tokens
    )
    expected = _plain(engine, params)
    if min_new_tokens == 0:
        assert expected.tokens == ordinary[: ordinary.index(stop) + 1]
        assert expected.finish == "stop"
    else:
        assert stop not in expected.tokens[:min_new_tokens]
    for found in _with_trees(engine, params, expected):
        assert found.tokens == expected.tokens
        assert found.finish == expected.finish
        assert len(found.tokens) == sum(len(r.picks) for r in found.rounds)


def test_bad_words_are_matched_on_each_nodes_path(engine: Engine) -> None:
    ordinary = _plain(engine, SamplingParams(max_new_tokens=COUNT)).tokens
    word = ordinary[4:6]
    first = next(i for i in range(1, COUNT) if ordinary[i - 1 : i + 1] == word)
    params = SamplingParams(max_new_tokens=COUNT, bad_words=(word,))
    expected = _plain(engine, params)
    assert expected.tokens[:first] == ordinary[:first]
    assert expected.tokens[first] != ordinary[first]
    pairs = list(zip(expected.tokens, expected.tokens[1:], strict=False))
    assert word not in pairs
    for found in _with_trees(engine, params, expected):
        assert found.tokens == expected.tokens


def test_logprobs_are_those_of_plain_decoding(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=COUNT, logprobs=5)
    expected = _plain(engine, params)
    for found in _with_trees(engine, params, expected):
        assert found.tokens == expected.tokens
        for one, two in zip(found.picks, expected.picks, strict=True):
            assert one.logprob is not None and two.logprob is not None
            assert one.top_logprobs is not None and two.top_logprobs is not None
            assert abs(one.logprob - two.logprob) < 1e-9
            assert [t for t, _ in one.top_logprobs] == [t for t, _ in two.top_logprobs]


def test_a_grammar_stays_in_step_over_rejected_drafts(engine: Engine) -> None:
    """(ab)*c as a function of the path: every output is in the language."""
    a, b, c = 11, 22, 33

    def grammar(
        prompt: Sequence[int], generated: Sequence[int], logits: torch.Tensor
    ) -> torch.Tensor:
        assert c not in generated, "asked about a path that had already ended"
        allowed = [b] if generated and generated[-1] == a else [a, c]
        masked = torch.full_like(logits, float("-inf"))
        masked[allowed] = logits[allowed]
        return masked

    for seed in range(5):
        params = SamplingParams(max_new_tokens=COUNT, temperature=1.0, seed=seed,
                                stop_token_ids=(c,), logits_processor=grammar)  # fmt: skip
        expected = _plain(engine, params)
        body = expected.tokens[:-1] if expected.finish == "stop" else expected.tokens
        assert all(token == (a, b)[i % 2] for i, token in enumerate(body))
        for found in _with_trees(engine, params, expected):
            assert found.tokens == expected.tokens


def test_seeds_repeat_and_differ(engine: Engine) -> None:
    def run(seed: int | None) -> Generation:
        return _plain(engine, SamplingParams(max_new_tokens=COUNT, temperature=1.0, seed=seed))

    assert run(1).tokens == run(1).tokens != run(2).tokens
    unseeded = run(None)
    assert run(unseeded.seed).tokens == unseeded.tokens
