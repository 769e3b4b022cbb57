"""The steps of a round at the sizes that are timed, each with its check and what it is beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from jetflow_kernels.round.accept import AcceptedBatch, accept_walk, accept_walk_reference
from jetflow_kernels.round.ancestors import pack_ancestors, pack_ancestors_reference
from jetflow_kernels.round.argmax import pick_argmax, pick_argmax_reference
from jetflow_kernels.round.build import build_all_children, build_tree
from jetflow_kernels.round.build_reference import build_all_children_reference, build_tree_reference
from jetflow_kernels.round.commit import CachePools, commit_path, commit_path_reference
from jetflow_kernels.round.slots import tree_slots, tree_slots_reference
from jetflow_kernels.round.topk import depth_topk, depth_topk_reference

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is timed; the defaults are those of Qwen3-8B."""

    vocabulary: int = 151_936
    depth: int = 15
    candidates: int = 16
    rows: tuple[int, ...] = (16, 64, 128, 256)
    layers: int = 36
    heads: int = 8
    dim: int = 128
    page: int = 128
    accepted: int = 10
    features: int = 5 * 4096
    copies: int = 16
    """Inputs that take turns within one graph, so that logits come from memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One step at one size."""

    name: str
    size: str
    check: Callable[[], None]
    """Raises RuntimeError where the step differs from its reference."""
    ours: list[Call]
    """The same step on inputs of its own each."""
    goal_us: float | None = None
    peers: dict[str, list[Call]] = field(default_factory=dict)
    """What torch has for it, on the device."""
    host: Call | None = None
    """The reference on the host, where the device has no peer."""


def expect_equal(name: str, found: object, wanted: object) -> None:
    """Compares results of one op, tensor by tensor, bit by bit.

    Raises:
        RuntimeError: they differ; nothing may be timed then.
    """
    for a, b in zip(_tensors(found), _tensors(wanted), strict=True):
        if not torch.equal(a.cpu(), b.cpu()):
            raise RuntimeError(f"{name} differs from its reference; nothing was timed")


def _tensors(result: object) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, tuple):
        return [tensor for part in result for tensor in _tensors(part)]
    return [getattr(result, each.name) for each in fields(result)]  # type: ignore[arg-type]


def top_tokens(sizes: Sizes, device: str) -> Contest:
    """The head's candidates of all depths."""
    copies = [
        random_logits(sizes.depth, sizes, device, torch.bfloat16) for _ in range(sizes.copies)
    ]
    count = sizes.candidates

    def check() -> None:
        found, wanted = depth_topk(copies[0], count), depth_topk_reference(copies[0], count)
        expect_equal("depth_topk", found.tokens, wanted.tokens)
        error = float((found.log_probs.double() - wanted.log_probs.double()).abs().max())
        if not error <= 2e-5:
            raise RuntimeError(f"depth_topk is off by {error}; nothing was timed")

    def torch_topk(logits: Tensor) -> object:
        top = logits.topk(count)
        return top.indices, top.values.float() - logits.logsumexp(1, keepdim=True)

    return Contest(
        name="depth_topk",
        size=f"{sizes.depth} x {sizes.vocabulary} bf16, K {count}",
        check=check,
        ours=[partial(depth_topk, x, count) for x in copies],
        peers={"torch topk + logsumexp": [partial(torch_topk, x) for x in copies]},
        goal_us=20.0,
    )


def picks(sizes: Sizes, rows: int, device: str) -> Contest:
    """The target's greedy picks."""
    number = max(2, sizes.copies // 4)
    copies = [random_logits(rows, sizes, device, torch.bfloat16) for _ in range(number)]
    return Contest(
        name="pick_argmax",
        size=f"{rows} x {sizes.vocabulary} bf16",
        check=lambda: expect_equal(
            "pick_argmax", pick_argmax(copies[0]), pick_argmax_reference(copies[0])
        ),
        ours=[partial(pick_argmax, x) for x in copies],
        peers={"torch argmax": [partial(x.argmax, 1) for x in copies]},
    )


def trees(sizes: Sizes, rows: int, device: str, *, by_parent: bool) -> list[Contest]:
    """Both builders on one request."""
    given = candidates(sizes, device, by_parent=by_parent)
    positions = torch.full((1,), 1000, dtype=torch.int32, device=device)
    budget = torch.full((1,), rows, dtype=torch.int32, device=device)
    arguments = (*given, torch.ones(1, dtype=torch.int32, device=device), budget, positions)
    on_host = tuple(tensor.cpu() for tensor in arguments)
    table = "by parent" if by_parent else "by depth"
    size = f"{rows} rows, K {sizes.candidates}, D {sizes.depth}, scores {table}"
    found = []
    for name, build, reference in (
        ("build_tree", build_tree, build_tree_reference),
        ("build_all_children", build_all_children, build_all_children_reference),
    ):
        found.append(
            Contest(
                name=name,
                size=size,
                check=lambda name=name, build=build, reference=reference: expect_equal(  # type: ignore[misc]
                    name, build(*arguments, capacity=rows), reference(*on_host, capacity=rows)
                ),
                ours=[partial(build, *arguments, capacity=rows)] * 4,
                host=partial(reference, *on_host, capacity=rows),
                goal_us=40.0 if name == "build_tree" and rows == 256 else None,
            )
        )
    return found


def words(sizes: Sizes, rows: int, device: str) -> Contest:
    """Ancestor words of a random tree."""
    parents, _ = random_tree(rows, sizes.accepted)
    count = torch.full((1,), rows, dtype=torch.int32)
    on_device = parents.to(device), count.to(device)
    return Contest(
        name="pack_ancestors",
        size=f"{rows} rows",
        check=lambda: expect_equal(
            "pack_ancestors", pack_ancestors(*on_device), pack_ancestors_reference(parents, count)
        ),
        ours=[lambda: pack_ancestors(*on_device)] * 4,
        host=lambda: pack_ancestors_reference(parents, count),
    )


def slots(sizes: Sizes, rows: int, device: str) -> Contest:
    """Cache slots of a tree."""
    table = torch.randperm(64).int()[None].to(device)
    prefix = torch.full((1,), 5 * sizes.page - 3, dtype=torch.int32, device=device)
    count = torch.full((1,), rows, dtype=torch.int32, device=device)
    steps = torch.arange(rows, device=device)

    def ours() -> Tensor:
        return tree_slots(table, prefix, count, capacity=rows, page=sizes.page)

    def peer() -> Tensor:
        places = prefix[:, None] + steps
        found = table.gather(1, places // sizes.page).long() * sizes.page + places % sizes.page
        return torch.where(steps < count[:, None], found, -1)

    return Contest(
        name="tree_slots",
        size=f"{rows} rows",
        check=lambda: expect_equal(
            "tree_slots",
            (ours(), peer()),
            (tree_slots_reference(table, prefix, count, capacity=rows, page=sizes.page),) * 2,
        ),
        ours=[ours] * 4,
        peers={"torch gather": [peer] * 4},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """One request's place in the pools of all layers."""

    pools: CachePools
    table: Tensor
    prefix: Tensor
    features: Tensor

    @classmethod
    def random(cls, sizes: Sizes, rows: int, device: str) -> Cache:
        """Pools of a few pages each, and the features of a tree of ``rows`` rows."""
        shape = (8, sizes.page, sizes.heads, sizes.dim)
        return cls(
            pools=CachePools.of(
                [
                    torch.randn(shape, device=device, dtype=torch.bfloat16)
                    for _ in range(2 * sizes.layers)
                ]
            ),
            table=torch.randperm(8).int()[None].to(device),
            prefix=torch.full((1,), 3 * sizes.page - 5, dtype=torch.int32, device=device),
            features=torch.randn(1, rows, sizes.features, device=device, dtype=torch.bfloat16),
        )

    def copy(self) -> Cache:
        """The same in pools of its own."""
        return Cache(
            pools=CachePools.of([pool.clone() for pool in self.pools.pools]),
            table=self.table,
            prefix=self.prefix,
            features=self.features,
        )

    def commit(self, rows: Tensor) -> Tensor:
        """``commit_path``."""
        return commit_path(self.pools, self.table, self.prefix, rows, self.features)

    def commit_reference(self, rows: Tensor) -> Tensor:
        """``commit_path_reference``."""
        return commit_path_reference(self.pools, self.table, self.prefix, rows, self.features)


def ending(sizes: Sizes, device: str) -> list[Contest]:
    """The walk, the commit, and both as a round needs them."""
    rows = max(sizes.rows)
    parents, path = random_tree(rows, sizes.accepted)
    tokens = torch.arange(rows)[None].int()
    wanted = torch.full((1, rows), -5, dtype=torch.int32)
    for above, below in pairwise(path):
        wanted[0, above] = tokens[0, below]
    count = torch.full((1,), rows, dtype=torch.int32)
    on_host = (tokens, parents, count, wanted)
    tree = tuple(tensor.to(device) for tensor in on_host)
    cache = Cache.random(sizes, rows, device)
    kept = accept_walk_reference(*on_host, max_depth=sizes.depth).rows.to(device)
    if int((kept >= 0).sum()) != sizes.accepted + 1:
        raise RuntimeError(f"the walk should accept {sizes.accepted} rows, got {kept.tolist()}")

    def walk() -> AcceptedBatch:
        return accept_walk(*tree, max_depth=sizes.depth)

    def check_walk() -> None:
        wanted = accept_walk_reference(*on_host, max_depth=sizes.depth)
        expect_equal("accept_walk", walk(), wanted)

    def check_commit() -> None:
        found, wanted = cache.copy(), cache.copy()
        results = found.commit(walk().rows), wanted.commit_reference(kept)
        expect_equal("commit_path", *results)
        expect_equal("commit_path", found.pools.pools, wanted.pools.pools)

    moved = f"{sizes.layers} layers, {sizes.accepted} accepted rows"
    return [
        Contest(
            name="accept_walk",
            size=f"{rows} rows, {sizes.accepted} accepted",
            check=check_walk,
            ours=[walk] * 4,
            host=lambda: accept_walk_reference(*on_host, max_depth=sizes.depth),
        ),
        Contest(
            name="commit_path",
            size=moved,
            check=check_commit,
            ours=[lambda: cache.commit(kept)] * 4,
            peers={"torch index": [lambda: _commit_by_index(cache, kept)] * 4},
        ),
        Contest(
            name="accept_walk + commit_path",
            size=moved,
            check=check_commit,
            ours=[lambda: cache.commit(walk().rows)] * 4,
            goal_us=10.0,
        ),
    ]


def _commit_by_index(cache: Cache, rows: Tensor) -> None:
    """The rows of one request moved by indexing, layer by layer; the number of rows is known."""
    kept = rows[0].clamp(min=0).long()
    page = cache.pools.pools[0].shape[1]
    source = cache.prefix + kept
    target = cache.prefix + torch.arange(len(kept), device=rows.device)
    table = cache.table[0].long()
    for pool in cache.pools.pools:
        values = pool[table[source // page], source % page]
        pool[table[target // page], target % page] = values
    cache.features[0, kept]


def candidates(sizes: Sizes, device: str, *, by_parent: bool) -> tuple[Tensor, Tensor]:
    """Tokens [1, D, K] and log-probabilities [1, D, 1 or K, K] of a peaked head."""
    lines = sizes.candidates if by_parent else 1
    shape = (1, sizes.depth, lines, sizes.candidates)
    scores = (2.0 * torch.randn(shape)).log_softmax(-1) - 0.05
    named = torch.arange(sizes.depth * sizes.candidates).int()
    return named.view(1, sizes.depth, -1).to(device), scores.float().to(device)


def random_tree(rows: int, depth: int) -> tuple[Tensor, list[int]]:
    """Parents [1, rows] of a tree, and a path of ``depth`` rows below the root, spread over it."""
    path = [step * (rows - 1) // depth for step in range(depth + 1)]
    parents = [-1] + [int(torch.randint(row, (1,))) for row in range(1, rows)]
    for above, below in pairwise(path):
        parents[below] = above
    return torch.tensor([parents], dtype=torch.int32), path


def random_logits(rows: int, sizes: Sizes, device: str, dtype: torch.dtype) -> Tensor:
    """[rows, V] of a standard deviation of 3."""
    return (3.0 * torch.randn(rows, sizes.vocabulary, device=device)).to(dtype)
