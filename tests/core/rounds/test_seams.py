"""Where others plug in: kernels, number types, and measurements with a given acceptance."""

from collections.abc import Callable
from inspect import Parameter, signature
from typing import Any

import pytest
import torch
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.fit import HeadMismatch
from jetflow_core.rounds import (
    Finished,
    FixedBudget,
    HeadRound,
    RoundOps,
    RoundRequest,
    RoundRunner,
    RunnerSettings,
    TorchRoundOps,
    TreeBatch,
    row_bytes,
)
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import DecoderStack, stack_of_model
from jetflow_core.target import Target
from jetflow_kernels import round as kernel_round
from jetflow_kernels import tree_attention
from torch import Tensor

SLOW = pytest.mark.slow
OF_AN_OBJECT = ("cache_pools", "attention_version")
"""Steps that the kernels have as methods of an object, which mypy compares."""
PROMPTS = [(5, 6, 7), (8, 9), tuple(range(30, 41))]
Runner = Callable[..., RoundRunner]
Answer = Callable[..., list[Finished]]


def _steps() -> list[str]:
    return [name for name in vars(RoundOps) if not name.startswith("_")]


@pytest.mark.parametrize("name", [name for name in _steps() if name not in OF_AN_OBJECT])
def test_what_the_kernels_export_fits_the_steps(name: str) -> None:
    """The same arguments in the same order; whatever comes beside them is optional."""
    found = tree_attention if name == "tree_attention" else getattr(kernel_round, name)
    wanted = list(signature(getattr(RoundOps, name)).parameters.values())[1:]
    theirs = signature(found).parameters
    for own in wanted:
        assert theirs[own.name].kind == own.kind
        assert theirs[own.name].default == own.default
    extra = [each for each in theirs.values() if each.name not in {own.name for own in wanted}]
    assert all(each.default is not Parameter.empty for each in extra)
    positional = [own.name for own in wanted if own.kind != Parameter.KEYWORD_ONLY]
    assert list(theirs)[: len(positional)] == positional


def test_the_reference_has_every_step() -> None:
    assert all(hasattr(TorchRoundOps, name) for name in _steps())


class FirstRows:
    """Picks that keep the first ``count`` rows on the chain of first children."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, trees: TreeBatch, counts: Tensor, picks: Tensor) -> Tensor:
        rows = torch.arange(picks.shape[1])
        child = (trees.parents[:, None] == rows[:, None]) & (rows < counts[:, None])[:, None]
        first = trees.tokens.gather(1, child.int().argmax(2))
        wanted = child.any(2) & (trees.depths < self._count)
        return torch.where(wanted, first, 127)


@pytest.mark.parametrize("count", [2, *(pytest.param(n, marks=SLOW) for n in (0, 5))])
def test_acceptance_can_be_imposed(
    scripted: Any, tiny_stack: DecoderStack, count: int
) -> None:  # fmt: skip
    """Every round keeps as many rows as it is told to; all else runs as it would."""
    drafter = scripted([(*prompt, *range(60)) for prompt in PROMPTS], "first")
    settings = RunnerSettings(memory=100 * 4 * row_bytes(tiny_stack, drafter), page=4)
    made = RoundRunner(
        tiny_stack, drafter, settings, budgets=FixedBudget(64), imposed=FirstRows(count)
    )
    params = SamplingParams(max_new_tokens=4 * (count + 1))
    requests = [RoundRequest.of(p, params, eos_ids=(), vocab_size=128) for p in PROMPTS]
    steps = list(made.run(requests))
    assert [step.accepted for step in steps] == [count] * 12
    assert all(step.tokens[-1] == 127 for step in steps)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=SLOW)])
def test_other_number_types(
    runner: Runner, answer: Answer, tiny_model: Callable[..., Any], dtype: torch.dtype,
    head_for_tiny_target: Callable[..., Any], head_round: Callable[..., HeadRound],
) -> None:  # fmt: skip
    """float32 gives plain decoding's tokens; bfloat16 rounds, so it only has to run."""
    stack = stack_of_model(tiny_model("qwen3", dtype=dtype), taps=(0, 1, 3))
    loaded = head_for_tiny_target(path_rank=4, candidates=64, input_bridge=True)
    loaded.head.to(dtype)
    params = [SamplingParams(max_new_tokens=9, temperature=0.6 * i, seed=i) for i in range(3)]
    made = runner(head_round(loaded, stack), stack=stack, budget=12)
    found = answer(made, PROMPTS, params)
    assert [len(each.tokens) for each in found] == [9, 9, 9]
    assert [each.drafts_refused for each in found] == [0, 0, 0]
    if dtype == torch.float32:
        engine = Engine(Target.from_model(tiny_model("qwen3", dtype=dtype)), None)
        wanted = engine.generate_batch(PROMPTS, params, TreeOptions(budget=1))
        assert [tuple(each.tokens) for each in found] == [each.tokens for each in wanted]


def test_a_head_of_another_target_is_refused(
    head_round: Callable[..., HeadRound], head_for_tiny_target: Callable[..., Any]
) -> None:
    for changes, message in (
        ({"target_layer_ids": (0, 3, 1)}, r"taps .*\(0, 3, 1\); of this stack: \(0, 1, 3\)"),
        ({"vocab_size": 100}, "vocabulary is 100; this target's is 128"),
    ):
        with pytest.raises(HeadMismatch, match=message):
            head_round(head_for_tiny_target(**changes))
    loaded = head_for_tiny_target()
    loaded.head.float()
    with pytest.raises(HeadMismatch, match=r"type .*float32; of this stack: torch.float64"):
        head_round(loaded)


def test_a_draft_that_is_no_distribution_is_a_plain_step(
    runner: Runner, answer: Answer, scripted: Any, plain_engine: Engine
) -> None:
    """NaN among one request's scores: its trees are roots, it is told, its neighbour is fine."""
    params = SamplingParams(max_new_tokens=8)
    wanted = plain_engine.generate_batch(PROMPTS, params, TreeOptions(budget=1))
    drafter = scripted([(*each.prompt, *each.tokens) for each in wanted], "first")
    base = drafter.propose

    def broken(inputs: Any) -> tuple[Tensor, Tensor]:
        tokens, scores = base(inputs)
        return tokens, scores.masked_fill((inputs.slots == 1)[:, None, None, None], torch.nan)

    drafter.propose = broken
    found = answer(runner(drafter), PROMPTS[:2], params)
    assert [tuple(each.tokens) for each in found] == [each.tokens for each in wanted[:2]]
    assert [each.drafts_refused > 0 for each in found] == [False, True]
    assert found[0].rounds == 2


def test_a_round_starts_before_the_one_before_it_is_read(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the device would wait for the host; only the last record is read with nothing to do."""
    made = runner()
    told: list[str] = []
    records: Any = made._records
    for holder, name in ((made.programs, "run"), (records, "read")):
        base = getattr(holder, name)
        monkeypatch.setattr(
            holder, name, lambda *args, name=name, base=base: (told.append(name), base(*args))[1]
        )
    params = SamplingParams(max_new_tokens=6)
    requests = [RoundRequest.of(p, params, eos_ids=(), vocab_size=128) for p in PROMPTS[1:2]]
    steps = list(made.run(requests))
    assert len(steps) == 6
    prompt, *rounds = told
    assert prompt == "run"
    assert rounds == ["run", *["run", "read"] * 5, "read"]
