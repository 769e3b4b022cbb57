"""The arguments of tree attention, checked in one place before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from jetflow_kernels.attention import plan

FLOAT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KERNEL_TYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, slots=True, eq=False)
class TreeAttentionArguments:
    """The seven tensors of one call; ``tree_attention_reference`` says what each holds."""

    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    page_table: Tensor
    cu_nodes: Tensor
    prefix_len: Tensor
    ancestors: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class RequestRows:
    """Where one request's rows are."""

    first: int
    """Its first row in ``q``."""
    last: int
    """One past its last row in ``q``."""
    prefix: int
    """Committed rows before its tree."""
    pages: Tensor
    """[n] int64, the pages that hold its rows, in order."""

    @property
    def length(self) -> int:
        """Rows of the prefix and the tree together."""
        return self.prefix + self.last - self.first


def check_arguments(
    arguments: TreeAttentionArguments, *, out: Tensor | None, lse: Tensor | None
) -> list[RequestRows]:
    """Refuses arguments that do not fit each other; waits for the device to look at values.

    Returns:
        The requests in order, those without rows left out.

    Raises:
        ValueError: naming the argument, what it has and what is allowed.
    """
    check_layout(arguments, out=out, lse=lse)
    requests = _requests(arguments)
    for index, request in requests:
        _check_words(arguments.ancestors[request.first : request.last], index)
    return [request for _, request in requests]


def check_layout(
    arguments: TreeAttentionArguments, *, out: Tensor | None, lse: Tensor | None
) -> None:
    """Refuses shapes, types and devices that do not fit each other, without looking at values.

    Raises:
        ValueError: naming the argument, what it has and what is allowed.
    """
    _check_shapes(arguments)
    _check_types(arguments)
    q = arguments.q
    for name, tensor, shape, dtype in (
        ("out", out, tuple(q.shape), q.dtype),
        ("lse", lse, (q.shape[0], q.shape[1]), torch.float32),
    ):
        if tensor is not None:
            _expect(name, tensor, shape, (dtype,), q.device)


def check_kernel_limits(arguments: TreeAttentionArguments) -> None:
    """Refuses what the reference computes and the kernels do not.

    Raises:
        ValueError: naming the argument, what it has and what is allowed.
    """
    q, pool = arguments.q, arguments.k_pool
    for name, found, allowed in (
        ("dtype of q", q.dtype, KERNEL_TYPES),
        ("head dim of q", q.shape[2], plan.HEAD_DIMS),
    ):
        if found not in allowed:
            raise ValueError(f"{name} must be one of {', '.join(map(str, allowed))}, got {found}")
    for name, number, least, most in (
        ("rows of a page of k_pool", pool.shape[1], *plan.PAGES),
        ("words of ancestors", arguments.ancestors.shape[1], 1, plan.MAX_WORDS),
        ("requests of prefix_len", arguments.prefix_len.shape[0], 0, plan.MAX_REQUESTS),
    ):
        if not least <= number <= most:
            raise ValueError(f"{name} must be {least}..{most}, got {number}")


def _check_shapes(arguments: TreeAttentionArguments) -> None:
    for name, dims in (
        ("q", "[T, Hq, D]"),
        ("k_pool", "[pages, page, Hkv, D]"),
        ("page_table", "[B, max_pages]"),
        ("cu_nodes", "[B + 1]"),
        ("prefix_len", "[B]"),
        ("ancestors", "[T, W]"),
    ):
        tensor: Tensor = getattr(arguments, name)
        if tensor.dim() != dims.count(",") + 1:
            raise ValueError(f"{name} must be {dims}, got shape {tuple(tensor.shape)}")
    rows, heads, dim = arguments.q.shape
    kv_heads, kv_dim = arguments.k_pool.shape[2:]
    if dim == 0 or kv_dim != dim:
        raise ValueError(f"q has head dim {dim}, k_pool has {kv_dim}; they must agree, at least 1")
    if kv_heads == 0 or heads == 0 or heads % kv_heads:
        raise ValueError(f"query heads {heads} are no multiple of the key heads {kv_heads}")
    if arguments.k_pool.shape[1] == 0:
        raise ValueError("k_pool has pages of 0 rows; at least 1")
    requests = arguments.prefix_len.shape[0]
    for name, found, wanted in (
        ("v_pool", tuple(arguments.v_pool.shape), tuple(arguments.k_pool.shape)),
        ("cu_nodes", arguments.cu_nodes.shape[0], requests + 1),
        ("page_table", arguments.page_table.shape[0], requests),
        ("ancestors", arguments.ancestors.shape[0], rows),
    ):
        if found != wanted:
            raise ValueError(f"{name} has {found} where {wanted} is needed")


def _check_types(arguments: TreeAttentionArguments) -> None:
    q = arguments.q
    if q.dtype not in FLOAT_TYPES:
        raise ValueError(f"q must be one of {', '.join(map(str, FLOAT_TYPES))}, got {q.dtype}")
    for name, dtype in (
        ("k_pool", q.dtype),
        ("v_pool", q.dtype),
        ("page_table", torch.int32),
        ("cu_nodes", torch.int32),
        ("prefix_len", torch.int32),
        ("ancestors", torch.int64),
    ):
        tensor: Tensor = getattr(arguments, name)
        _expect(name, tensor, tuple(tensor.shape), (dtype,), q.device)


def _expect(
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{name} must be {dtypes[0]}, got {tensor.dtype}")
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device} like q, got {tensor.device}")


def _requests(arguments: TreeAttentionArguments) -> list[tuple[int, RequestRows]]:
    starts = arguments.cu_nodes.tolist()
    rows = arguments.q.shape[0]
    if starts[0] != 0 or starts[-1] > rows or any(b < a for a, b in pairwise(starts)):
        raise ValueError(f"cu_nodes must rise from 0 to at most the {rows} rows of q, got {starts}")
    pages, page = arguments.k_pool.shape[:2]
    max_pages = arguments.page_table.shape[1]
    found = []
    for index, prefix in enumerate(arguments.prefix_len.tolist()):
        first, last = starts[index], starts[index + 1]
        if prefix < 0:
            raise ValueError(f"prefix_len[{index}] is {prefix}; at least 0")
        if first == last:
            continue
        needed = -(-(prefix + last - first) // page)
        if needed > max_pages:
            raise ValueError(
                f"request {index} has {prefix} + {last - first} rows and needs {needed} pages of "
                f"{page}; page_table has room for {max_pages}"
            )
        ids = arguments.page_table[index, :needed].long()
        outside = ids[(ids < 0) | (ids >= pages)]
        if outside.numel():
            raise ValueError(
                f"page_table[{index}] names page {int(outside[0])}; the pool has 0..{pages - 1}"
            )
        found.append((index, RequestRows(first, last, prefix, ids)))
    return found


def _check_words(words: Tensor, index: int) -> None:
    """Refuses bits that stand for rows the tree does not have."""
    nodes, width = words.shape
    if nodes > 64 * width:
        raise ValueError(
            f"request {index} has {nodes} rows; ancestors with {width} words name at most "
            f"{64 * width}"
        )
    full, rest = divmod(nodes, 64)
    allowed = [0] * full + ([-1 << rest] if full < width else []) + [-1] * (width - full - 1)
    beyond = words & torch.tensor(allowed, dtype=torch.int64, device=words.device)
    bad = torch.nonzero(beyond.any(dim=1)).flatten()
    if bad.numel():
        raise ValueError(
            f"row {int(bad[0])} of request {index} sees a tree row past the last one; "
            f"its tree has {nodes} rows"
        )
