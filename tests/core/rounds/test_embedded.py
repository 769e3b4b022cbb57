"""The embedded target with the shipped head, in float32: the text of transformers' own generate."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jetflow_core.defaults import default_head
from jetflow_core.head.checkpoint import load_head
from jetflow_core.rounds import (
    FixedBudget,
    HeadRound,
    RoundRequest,
    RoundRunner,
    RunnerSettings,
    TorchRoundOps,
    row_bytes,
)
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import load_stack

TEXTS = ("def add(a, b):", "1, 2, 3,")
PAGES, PAGE = 130, 1


@pytest.mark.slow
def test_one_request_and_sixteen_that_are_admitted_and_preempted(
    embedded_folder: Path, greedy: Callable[..., tuple[int, ...]]
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(embedded_folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    loaded = load_head(default_head(), dtype=torch.float32, device="cpu")
    stack = load_stack(
        embedded_folder, taps=loaded.config.target_layer_ids, dtype=torch.float32, context=64
    )
    head = HeadRound.fitted(loaded, stack, TorchRoundOps(), depth=4)
    memory = PAGES * PAGE * row_bytes(stack, head)
    runner = RoundRunner(
        stack, head, RunnerSettings(memory=memory, slots=16, page=PAGE), budgets=FixedBudget(5)
    )

    def request(prompt: tuple[int, ...], count: int) -> RoundRequest:
        rules = SamplingParams(max_new_tokens=count)
        return RoundRequest.of(prompt, rules, eos_ids=(), vocab_size=stack.vocab_size)

    prompts = [tuple(tokenizer.encode(text)) for text in TEXTS]
    answers = [greedy(model, prompt, 6) for prompt in prompts]
    every = [(prompts[i % 2], answers[i % 2], 4 + i % 3) for i in range(16)]
    alone = runner.generate([request(prompts[1], 6)])[0]
    assert tuple(alone.tokens) == answers[1]
    found = runner.generate([request(prompt, count) for prompt, _, count in every])
    for result, (_, wanted, count) in zip(found, every, strict=True):
        assert tuple(result.tokens) == wanted[:count]
    assert sum(each.preemptions for each in found) > 0
    assert sum(each.rounds for each in found) < sum(len(each.tokens) for each in found)
