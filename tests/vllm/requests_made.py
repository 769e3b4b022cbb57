"""The requests of these tests, by name; every prompt occurs once, so that it tells its answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import tiny
from running import Request
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams

_RANDOM = np.random.default_rng(7)


def prompt(length: int) -> list[int]:
    """A random prompt without the end token."""
    return _RANDOM.integers(1, tiny.VOCABULARY, length).tolist()


def greedy(most: int = 48, **options: Any) -> SamplingParams:
    """Greedy, whatever the end token says."""
    return SamplingParams(temperature=0.0, max_tokens=most, **{"ignore_eos": True, **options})


GREEDY: list[Request] = [(prompt(length), greedy()) for length in (5, 14, 23, 31, 32, 33, 60)]
LONG: list[Request] = [(prompt(length), greedy(32)) for length in (100, 129, 64)]
SAME_START = prompt(256)
SHARED: list[Request] = [([*SAME_START, *prompt(n)], greedy(32)) for n in (3, 9, 20)]
TO_THE_END: list[Request] = [(prompt(length), greedy(400)) for length in (440, 470, 12)]

MIXED: list[Request] = [
    (prompt(9), greedy(repetition_penalty=1.3)),
    (prompt(10), greedy(frequency_penalty=1.5, presence_penalty=0.5)),
    (prompt(11), greedy(frequency_penalty=-2.0)),
    (prompt(12), greedy(bad_words=["the", "a"])),
    (prompt(13), greedy(stop=["e"], ignore_eos=False)),
    (prompt(14), greedy(stop_token_ids=list(range(100, 140)))),
    (prompt(15), greedy(stop_token_ids=list(range(100, 200)), min_tokens=17)),
    (prompt(16), greedy(allowed_token_ids=list(range(50, 90)))),
    (prompt(17), greedy(1)),
    (prompt(18), greedy(2)),
    (prompt(19), greedy()),
    (prompt(25), greedy(extra_args={"jetflow_budget": "off"})),
    (prompt(26), greedy(extra_args={"jetflow_budget": 4})),
]
GRAMMAR: list[Request] = [
    (prompt(20), greedy(24, structured_outputs=StructuredOutputsParams(regex="(ab|cd)*e"),
                        ignore_eos=False)),
    (prompt(21), greedy(24, structured_outputs=StructuredOutputsParams(
        choice=["root and branch", "root", "leaf"]), ignore_eos=False)),
    (prompt(22), greedy(40, structured_outputs=StructuredOutputsParams(json={
        "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
        ignore_eos=False)),
    (prompt(24), greedy()),
]  # fmt: skip
LOGPROBS: list[Request] = [(prompt(length), greedy(24, logprobs=3)) for length in (8, 26, 41)]
NAMED: list[Request] = [(prompt(18), greedy(12, logprob_token_ids=[5, 9, 33]))]

SETS: dict[str, list[Request]] = {
    "greedy": GREEDY,
    "long": LONG,
    "shared": SHARED,
    "to_the_end": TO_THE_END,
    "mixed": MIXED,
    "grammar": GRAMMAR,
    "logprobs": LOGPROBS,
    "named": NAMED,
}
