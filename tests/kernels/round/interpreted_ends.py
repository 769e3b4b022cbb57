"""Interpreted, or on a CUDA device: packing and the end of a round equal their references."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
import torch
from jetflow_kernels.round import (
    advance,
    advance_reference,
    pack_trees,
    pack_trees_reference,
)
from torch import Tensor

pytestmark = pytest.mark.usefixtures("on_the_device")


@dataclass(frozen=True)
class Lines:
    live: Tensor
    roots: Tensor
    prefix_len: Tensor
    remaining: Tensor
    stops: Tensor
    record: Tensor


class Draws:
    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def int32(self, low: int, high: int, *shape: int) -> Tensor:
        made = torch.randint(low, high, shape, generator=self._generator, device="cpu")
        return made.int().to(torch.get_default_device())


def same(found: object, wanted: object) -> None:
    for field in fields(wanted):
        one, other = getattr(found, field.name), getattr(wanted, field.name)
        assert one.dtype == other.dtype, field.name
        assert torch.equal(one, other), field.name


@pytest.mark.parametrize(
    ("counts", "capacity", "rows"),
    [
        ([1], 1, 1),
        ([5, 0, 16, 3], 16, 24),
        ([0, 0, 7], 9, 70),
        ([0, 0], 4, 33),
        ([256], 256, 256),
        ([2] * 70, 2, 140),
    ],
)
def test_trees_one_behind_the_other(counts: list[int], capacity: int, rows: int) -> None:
    draws, requests = Draws(sum(counts)), len(counts)
    table = draws.int32(0, 90, requests, 8)[:, :5]
    words = draws.int32(0, 2**31 - 1, requests, capacity, 2).long() * 3_000_000_007
    given = (
        draws.int32(0, 999, requests, capacity), draws.int32(0, 999, requests, capacity), words,
        table, draws.int32(0, 20, requests), torch.tensor(counts, dtype=torch.int32),
    )  # fmt: skip
    # Pages of 4 rows, 5 of them: some rows lie past the end of the table.
    found = pack_trees(*given, rows=rows, page=4)
    same(found, pack_trees_reference(*given, rows=rows, page=4))
    again = pack_trees(*given, rows=rows, page=4, out=found)
    assert again is found


def lines_of(draws: Draws, requests: int, steps: int) -> Lines:
    return Lines(
        live=draws.int32(0, 4, requests) > 0,
        roots=draws.int32(0, 50, requests),
        prefix_len=draws.int32(0, 99, requests),
        remaining=draws.int32(1, 9, requests),
        stops=draws.int32(-1, 12, requests, 3),
        record=draws.int32(7, 9, requests, 5 + steps),
    )


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("steps", [1, 2, 7, 16])
def test_the_end_of_a_round(seed: int, steps: int) -> None:
    draws, requests, rows = Draws(seed), 8, 40
    lines = lines_of(draws, requests, steps)
    accepted = draws.int32(0, steps, requests)
    each = torch.arange(steps)
    path = draws.int32(1, 5, requests, steps).cumsum(1).int() - 1
    path[:, 0] = 0
    path = path.masked_fill(each > accepted[:, None], -1)
    tokens = draws.int32(0, 40, requests, steps).masked_fill(each > accepted[:, None], -1)
    given = (
        path, tokens, accepted, tokens.gather(1, accepted[:, None].long())[:, 0],
        draws.int32(1, 9, requests), torch.arange(requests + 1, dtype=torch.int32) * 5,
        draws.int32(0, 6, rows) == 0, draws.int32(0, 3, requests) > 0,
    )  # fmt: skip
    others = replace(lines, **{f.name: getattr(lines, f.name).clone() for f in fields(lines)})
    found, wanted = advance(lines, *given), advance_reference(others, *given)
    same(found, wanted)
    same(lines, others)
    assert (lines.record[:, 0] <= 8).all()


def test_lines_of_a_wider_state_are_changed_where_they_are() -> None:
    draws = Draws(3)
    whole = lines_of(draws, 6, 4)
    whole.live.fill_(True)
    first = Lines(**{f.name: getattr(whole, f.name)[:2] for f in fields(whole)})
    rest = {f.name: getattr(whole, f.name)[2:].clone() for f in fields(whole)}
    zeros = torch.zeros(2, dtype=torch.int32)
    path = torch.tensor([[0, -1, -1, -1]] * 2, dtype=torch.int32)
    tokens = torch.tensor([[30, -1, -1, -1]] * 2, dtype=torch.int32)
    starts = torch.arange(3, dtype=torch.int32)
    fine = torch.ones(2, dtype=torch.bool)
    advance(first, path, tokens, zeros, tokens[:, 0].clone(), zeros + 1, starts, ~fine, fine)
    assert whole.roots[:2].tolist() == [30, 30]
    assert whole.record[:2].tolist() == [[1, 0, 1, 0, 1, 30, -1, -1, -1]] * 2
    for name, kept in rest.items():
        assert torch.equal(getattr(whole, name)[2:], kept), name


def test_both_have_fakes() -> None:
    draws = Draws(5)
    given = (
        draws.int32(0, 9, 2, 3), draws.int32(0, 9, 2, 3), draws.int32(0, 9, 2, 3, 1).long(),
        draws.int32(0, 9, 2, 2), draws.int32(0, 2, 2), draws.int32(1, 3, 2),
    )  # fmt: skip
    packed = pack_trees(*given, rows=6, page=4)
    test_utils = ("test_schema", "test_faketensor")
    out = (packed.tokens, packed.positions, packed.slots, packed.ancestors, packed.owners)
    torch.library.opcheck(
        torch.ops.jetflow_kernels.pack_trees.default,
        (*given, 4, *out, packed.cu_nodes, packed.places),
        test_utils=test_utils,
    )
    lines = lines_of(draws, 2, 1)
    path = torch.zeros(2, 1, dtype=torch.int32)
    flags = torch.ones(2, dtype=torch.bool)
    zeros = path[:, 0].clone()
    kept = (path.clone(), path.long(), zeros.clone())
    torch.library.opcheck(
        torch.ops.jetflow_kernels.advance.default,
        (
            *(getattr(lines, f.name) for f in fields(lines)), path, path.clone(), zeros,
            zeros.clone(), zeros.clone(), torch.arange(3, dtype=torch.int32), flags,
            flags.clone(), *kept,
        ),
        test_utils=test_utils,
    )  # fmt: skip
