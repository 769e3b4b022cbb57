"""What a CUDA graph asks of a round, seen on the CPU: every run of a size does the same operations.

The sizes are those of a GPU, with padding requests, rows and pages.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import pytest
import torch
from jetflow_core.rounds import (
    AutoBudget,
    Finished,
    HeadRound,
    RoundCosts,
    RoundRunner,
    TorchRoundOps,
)
from jetflow_core.rounds.graphs import RoundPrograms
from jetflow_core.sampling import SamplingParams
from jetflow_core.stacks import DecoderStack, TorchOps, stack_of_model
from torch.utils._python_dispatch import TorchDispatchMode

PROMPTS = [(5, 6, 7), (8, 9), tuple(range(30, 39))]
Runner = Callable[..., RoundRunner]
Answer = Callable[..., list[Finished]]
# What looks at values on the host, or makes a tensor out of numbers of the host.
FORBIDDEN = ("local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique",
             "bincount", "lift_fresh", "repeat_interleave")  # fmt: skip


class Trace(TorchDispatchMode):
    """Notes every operation with the shapes of what comes out."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__.split(".")[0]
        assert not name.strip("_").startswith(FORBIDDEN), name
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            assert all(i is None or i.dtype != torch.bool for i in args[1]), f"{name} by a mask"
        out = func(*args, **(kwargs or {}))
        found = out if isinstance(out, tuple | list) else (out,)
        shapes = [tuple(each.shape) for each in found if isinstance(each, torch.Tensor)]
        self.seen.append(f"{name} {shapes}")
        return out


class OnDevice(TorchOps):
    """The reference of a layer's operations, with a cache write that a graph could hold."""

    def norm_rope_kv_write(self, *args: Any, **more: Any) -> torch.Tensor:
        return TorchRoundOps().norm_rope_kv_write(*args, **more)


def _as_on_a_gpu(made: RoundRunner) -> dict[Hashable, list[list[str]]]:
    """Gives a runner the sizes of a GPU; returns what each program did in each of its runs."""
    width = made.tables.table.shape[1]
    slots = made.tables.table.shape[0]
    sizes = RoundPrograms(torch.device("cuda"), captured=True, slots=slots, pages=width)
    traces: dict[Hashable, list[list[str]]] = {}
    programs: Any = made.programs
    programs.size, programs.prompt_size = sizes.size, sizes.prompt_size

    def run(key: Hashable, program: Callable[[], None], changes: Sequence[torch.Tensor]) -> None:
        places = [tensor.data_ptr() for tensor in changes]
        with Trace() as trace:
            program()
        traces.setdefault(key, []).append(trace.seen)
        assert [tensor.data_ptr() for tensor in changes] == places

    programs.run = run
    return traces


@pytest.fixture(scope="module")
def stack(tiny_model: Callable[..., Any]) -> Iterator[DecoderStack]:
    yield stack_of_model(tiny_model("qwen3", num_hidden_layers=2), taps=(0, 1), ops=OnDevice())


COSTS = RoundCosts(
    contexts=(0,),
    seconds={(r, total): (1.0 + 0.01 * total,) for r in (1, 2) for total in (r, 4, 8)},
)


@pytest.mark.parametrize(
    "changes",
    [
        {"path_rank": 4, "input_bridge": True, "score_temperatures": ((0.0, 0.5), (1.0, 1.5))},
        {"auto": True},
        pytest.param(
            {"path_rank": 4, "candidates": 4, "candidate_pool": 9}, marks=pytest.mark.slow
        ),
        pytest.param({"causal": False}, marks=pytest.mark.slow),
    ],
)
def test_every_run_of_a_size_does_the_same(
    runner: Runner, answer: Answer, head_for_tiny_target: Callable[..., Any], unequal: Any,
    head_round: Callable[..., HeadRound], stack: DecoderStack, changes: dict[str, Any],
) -> None:  # fmt: skip
    auto = "auto" in changes
    rules: dict[str, Any] = {"top_p": 0.8, "logit_bias": {5: 1.0}} if auto else {}
    params = [
        SamplingParams(max_new_tokens=4 + 2 * i, temperature=0.7 * (i % 2), seed=i, **rules)
        for i in range(3)
    ]
    sizes = {"candidates": 40, "num_layers": 1, "num_target_layers": 2, "target_layer_ids": (0, 1)}
    loaded = head_for_tiny_target(**{**sizes, **({} if auto else changes)})

    def made() -> RoundRunner:
        budget = AutoBudget(COSTS, most=8, most_total=8) if auto else unequal()
        return runner(head_round(loaded, stack), stack=stack, budget=budget, pages=60, slots=2)

    wanted = answer(made(), PROMPTS, params)
    padded = made()
    traces = _as_on_a_gpu(padded)
    found = answer(padded, PROMPTS, params)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    runs = [len(each) for each in traces.values()]
    assert max(runs) > 2
    assert not auto or {key[0].tree_rows for key in traces if key[0] != "prompt"} > {8}
    for key, each in traces.items():
        assert all(len(one) > 50 for one in each)
        assert all(one == each[0] for one in each), key


def test_the_watch_sees_what_it_is_for() -> None:
    values = torch.arange(3)
    for wrong in (
        lambda: values[values > 1], lambda: int(values[0]), lambda: values.nonzero(),
        lambda: torch.tensor([1, 2]), lambda: values.unique(),
        lambda: values.__setitem__(values > 1, values[:1]),
    ):  # fmt: skip
        with pytest.raises(AssertionError), Trace():
            wrong()
