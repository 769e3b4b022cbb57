"""The device functions read nothing back: they run without data, and inside a CUDA graph."""

import pytest
import torch
from jetflow_tree.torch import (
    DeviceTrees,
    ancestor_matrix,
    ancestor_words,
    best_first,
    positions,
    walk,
)
from torch import Tensor

REQUESTS, DEPTH, WIDTH, BUDGET = 3, 5, 4, 70


def random_round(seed: int, parents: int) -> tuple[Tensor, ...]:
    """tokens, log_probs, roots, live budgets, root positions and picks of one round."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(REQUESTS, DEPTH, parents, WIDTH + 1, generator=generator)
    return (
        torch.rand(REQUESTS, DEPTH, WIDTH, generator=generator).argsort(-1),
        logits.log_softmax(-1)[..., :WIDTH],
        torch.randint(WIDTH, (REQUESTS,), generator=generator),
        torch.randint(1, BUDGET + 1, (REQUESTS,), generator=generator),
        torch.randint(100, (REQUESTS,), generator=generator),
        torch.randint(WIDTH, (REQUESTS, BUDGET), generator=generator),
    )


def whole_round(
    tokens: Tensor, log_probs: Tensor, roots: Tensor, live: Tensor, starts: Tensor, picks: Tensor
) -> dict[str, Tensor]:
    """Everything that a round does between the draft head and the commit."""
    trees = best_first(tokens, log_probs, roots, BUDGET, live_budgets=live)
    accepted = walk(trees, picks)
    return {
        **{name: getattr(trees, name) for name in DeviceTrees.__slots__ if name != "max_depth"},
        "words": ancestor_words(trees),
        "matrix": ancestor_matrix(trees),
        "positions": positions(trees, starts),
        **{name: getattr(accepted, name) for name in type(accepted).__slots__},
    }


@pytest.mark.parametrize("parents", [1, WIDTH])
def test_runs_on_tensors_without_data(parents):
    """A read of a value or a shape that depends on one cannot be had from a meta tensor."""
    inputs = random_round(0, parents)
    expected = whole_round(*inputs)
    found = whole_round(*(each.to("meta") for each in inputs))
    assert all(tensor.is_meta for tensor in found.values())
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in found.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in expected.items()
    }


def test_the_meta_device_does_catch_a_read():
    lengths = torch.ones(3, dtype=torch.int64, device="meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        lengths[0].item()
    with pytest.raises((RuntimeError, NotImplementedError)):
        lengths[lengths > 0]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph needs a CUDA device")
@pytest.mark.parametrize("parents", [1, WIDTH])
def test_one_graph_serves_other_inputs_and_budgets(parents):
    static = tuple(each.cuda() for each in random_round(0, parents))
    whole_round(*static)  # Kernels are loaded on their first call, which a capture forbids.
    graph = torch.cuda.CUDAGraph()
    # A capture fails on any synchronisation of the host.
    with torch.cuda.graph(graph):
        captured = whole_round(*static)
    for seed in range(1, 6):
        inputs = random_round(seed, parents)
        for target, value in zip(static, inputs, strict=True):
            target.copy_(value)
        graph.replay()
        for name, expected in whole_round(*inputs).items():
            assert torch.equal(captured[name].cpu(), expected), name
