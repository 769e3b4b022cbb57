"""Wrong arguments are refused by name, before anything is written."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from jetflow_kernels import tree_attention_reference


def _int(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# What to replace in a good batch of trees (5, 2) behind prefixes (9, 0), and the message.
WRONG: list[tuple[str, Callable[[Any], dict[str, Any]], str]] = [
    ("q dims", lambda b: {"q": b.q[0]}, r"q must be \[T, Hq, D\], got shape \(4, 8\)"),
    ("q type", lambda b: {"q": b.q.int()}, "q must be one of .* got torch.int32"),
    ("pool type", lambda b: {"k_pool": b.k_pool.float()}, "k_pool must be torch.float64"),
    ("v shape", lambda b: {"v_pool": b.v_pool[1:]}, "v_pool has .* is needed"),
    ("head dim", lambda b: {"q": b.q[..., :7]}, "q has head dim 7, k_pool has 8"),
    ("groups", lambda b: {"q": b.q[:, :3]}, "query heads 3 are no multiple of the key heads 2"),
    ("table type", lambda b: {"page_table": b.page_table.long()}, "page_table must be torch.int32"),
    ("table rows", lambda b: {"page_table": b.page_table[:1]}, "page_table has 1 where 2"),
    ("short table", lambda b: {"page_table": b.page_table[:, :0]}, "needs 1 pages of 16"),
    ("page id", lambda b: {"page_table": b.page_table + 50}, r"names page \d+; the pool has 0..3"),
    ("negative page", lambda b: {"page_table": b.page_table - 50}, "names page -"),
    ("cu dims", lambda b: {"cu_nodes": _int(0, 5)}, "cu_nodes has 2 where 3"),
    ("cu start", lambda b: {"cu_nodes": _int(1, 5, 7)}, r"cu_nodes must rise from 0"),
    ("cu order", lambda b: {"cu_nodes": _int(0, 5, 4)}, r"got \[0, 5, 4\]"),
    ("cu end", lambda b: {"cu_nodes": _int(0, 5, 99)}, "at most the 10 rows of q"),
    ("prefix", lambda b: {"prefix_len": _int(9, -1)}, r"prefix_len\[1\] is -1; at least 0"),
    ("words type", lambda b: {"ancestors": b.ancestors.int()}, "ancestors must be torch.int64"),
    ("words rows", lambda b: {"ancestors": b.ancestors[1:]}, "ancestors has 9 where 10"),
    ("no words", lambda b: {"ancestors": b.ancestors[:, :0]}, "with 0 words name at most 0"),
    ("far bit", lambda b: {"ancestors": b.ancestors | 32}, "row 0 of request 0 sees a tree row"),
    ("scale", lambda b: {"scale": float("nan")}, "scale must be finite, got nan"),
    ("out shape", lambda b: {"out": b.q[1:].clone()}, r"out must have shape \(10, 4, 8\)"),
    ("out type", lambda b: {"out": b.q.float()}, "out must be torch.float64"),
    ("lse type", lambda b: {"lse": torch.zeros(10, 4).double()}, "lse must be torch.float32"),
    ("device", lambda b: {"prefix_len": b.prefix_len.to("meta")}, "must be on cpu like q"),
]


@pytest.mark.parametrize(("change", "message"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_wrong_arguments_are_named(
    make_batch: Callable[..., Any], change: Callable[[Any], dict[str, Any]], message: str
) -> None:
    batch = make_batch((5, 2), (9, 0))
    out = torch.full_like(batch.q, 7.0)
    with pytest.raises(ValueError, match=message):
        tree_attention_reference(**{**batch.arguments, "out": out, **change(batch)})
    assert torch.equal(out, torch.full_like(out, 7.0))


def test_all_64_bits_are_allowed_for_64_rows(make_batch: Callable[..., Any]) -> None:
    batch = make_batch((64,), (0,))
    batch.ancestors[63] = -1
    assert torch.isfinite(tree_attention_reference(**batch.arguments)).all()
