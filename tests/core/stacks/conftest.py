"""Shared by the tests of decoder stacks: paged passes of several requests, and what must come out.

The expected values are transformers' own, of one pass over prefix and tree under a 4D mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

PAGE = 4
VOCABULARY = 128


@dataclass(frozen=True)
class Request:
    """A prefix of committed tokens and a tree behind it, its root included."""

    prefix: tuple[int, ...]
    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    @property
    def depths(self) -> list[int]:
        found: list[int] = []
        for parent in self.parents:
            found.append(0 if parent < 0 else found[parent] + 1)
        return found

    @property
    def visible(self) -> Any:
        """`[N, N]` bool: a row sees its ancestors and itself."""
        import torch

        seen = torch.eye(len(self.parents), dtype=torch.bool)
        for row, parent in enumerate(self.parents):
            if parent >= 0:
                seen[row] |= seen[parent]
        return seen


class PagedRun:
    """Runs a stack over pages in a shuffled order, poisoned with NaN wherever nobody wrote."""

    def __init__(self, stack: Any, requests: int, capacity: int = 64) -> None:
        import torch
        from jetflow_core.stacks import KVPools

        self.stack = stack
        pages = -(-capacity // PAGE)
        self.pools = KVPools.allocate(
            stack.shape, pages=requests * pages + 1, page=PAGE, dtype=stack.dtype, device="cpu"
        )
        for pool in (*self.pools.keys, *self.pools.values):
            pool.fill_(torch.nan)
        order = torch.randperm(requests * pages, generator=torch.Generator().manual_seed(5)) + 1
        self.page_table = order.view(requests, pages).int()
        self.lengths = torch.zeros(requests, dtype=torch.int32)

    def slot(self, request: int, place: int) -> int:
        return int(self.page_table[request, place // PAGE]) * PAGE + place % PAGE

    def run(self, requests: Sequence[Request], padding: int = 0) -> tuple[Any, Any]:
        """Hidden states and features of all rows; lengths stay, padding rows come last."""
        import torch
        from jetflow_core.stacks import PackedRows, TorchTreeAttention

        tokens, positions, slots, starts = [], [], [], [0]
        words = []
        for index, request in enumerate(requests):
            prefix = int(self.lengths[index])
            tokens += request.tokens
            positions += [prefix + depth for depth in request.depths]
            slots += [self.slot(index, prefix + row) for row in range(len(request.tokens))]
            starts.append(len(tokens))
            bits = 2 ** torch.arange(len(request.tokens))
            words += (request.visible * bits).sum(1).tolist()
        rows = PackedRows(
            tokens=torch.tensor([*tokens, *[0] * padding], dtype=torch.int64),
            positions=torch.tensor([*positions, *[0] * padding], dtype=torch.int32),
            slots=torch.tensor([*slots, *[-1] * padding], dtype=torch.int64),
        )
        attend = TorchTreeAttention(
            pools=self.pools,
            page_table=self.page_table,
            cu_nodes=torch.tensor(starts, dtype=torch.int32),
            prefix_len=self.lengths,
            ancestors=torch.tensor([*words, *[0] * padding], dtype=torch.int64)[:, None],
        )
        features = torch.full(
            (rows.count, self.stack.feature_size), torch.nan, dtype=self.stack.dtype
        )
        return self.stack.forward(rows, self.pools, attend, features), features

    def prefill(self, prefixes: Sequence[Sequence[int]]) -> None:
        """Commits whole prefixes, the empty ones too, in one pass of chains."""
        chains = [
            Request((), tuple(prefix), tuple(range(-1, len(prefix) - 1))) for prefix in prefixes
        ]
        if any(prefixes):
            self.run(chains)
        for index, prefix in enumerate(prefixes):
            self.lengths[index] += len(prefix)


@pytest.fixture(scope="session")
def paged_run() -> type[PagedRun]:
    """`paged_run(stack, requests)` holds the pages of some requests."""
    return PagedRun


@pytest.fixture(scope="session")
def some_requests() -> tuple[Request, ...]:
    """Ragged: a tree behind a prefix over pages, a lone root, and a tree without any prefix."""
    return (
        Request((5, 77, 12, 12, 99, 3, 41), (8, 1, 2, 1, 9, 60, 61), (-1, 0, 0, 1, 1, 2, 4)),
        Request((7, 7, 100), (33,), (-1,)),
        Request((), (50, 51, 52, 53, 54), (-1, 0, 1, 0, 3)),
    )


@pytest.fixture(scope="session")
def lively_model(tiny_model: Callable[..., Any]) -> Callable[..., Any]:
    """`tiny_model` whose biases and norms are random too, so that none of them can be forgotten."""

    def make(kind: str, **options: Any) -> Any:
        import torch

        model = tiny_model(kind, **options)
        generator = torch.Generator().manual_seed(3)
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(noise * 0.3 + float("norm" in name))
        return model

    return make


@pytest.fixture(scope="session")
def transformers_rows() -> Callable[..., tuple[Any, Any]]:
    """`transformers_rows(model, request, taps)`: logits and tapped outputs of the tree's rows."""

    def run(model: Any, request: Request, taps: Sequence[int]) -> tuple[Any, Any]:
        import torch

        prefix, count = len(request.prefix), len(request.tokens)
        seen = torch.ones(prefix + count, prefix + count, dtype=torch.bool).tril()
        seen[prefix:, prefix:] = request.visible
        mask = torch.zeros(seen.shape, dtype=model.dtype).masked_fill(~seen, -torch.inf)
        positions = [*range(prefix), *[prefix + depth for depth in request.depths]]
        outputs: dict[int, Any] = {}
        hooks = [
            model.base_model.layers[tap].register_forward_hook(
                lambda *call, tap=tap: outputs.__setitem__(tap, call[-1][0])
            )
            for tap in taps
        ]
        logits = model(
            input_ids=torch.tensor([[*request.prefix, *request.tokens]]),
            position_ids=torch.tensor([positions]),
            attention_mask=mask[None, None],
            use_cache=False,
        ).logits[0]
        for hook in hooks:
            hook.remove()
        tapped = [outputs[tap][prefix:] for tap in taps]
        return logits[prefix:], torch.cat(tapped, dim=1) if tapped else logits[prefix:, :0]

    return run
