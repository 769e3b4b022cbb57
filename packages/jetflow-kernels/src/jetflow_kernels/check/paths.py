"""The list of candidates along the drafted paths."""

from __future__ import annotations

import torch

from jetflow_kernels.round.contests import expect_equal
from jetflow_kernels.round.path_candidates import path_candidates, path_candidates_reference


def pooled_paths(
    device: str, *, count: int, depth: int, width: int, pool: int
) -> tuple[int, float]:
    """Candidates along the drafted paths, of pools whose tokens are apart."""
    order = torch.rand(count, depth, pool).argsort(-1)
    names = torch.rand(count, depth + 1, 4 * pool).argsort(-1).int()
    host = (
        names[:, 0, :width],
        (-0.35 * torch.arange(width)).expand(count, -1).log_softmax(-1) - 0.2,
        names[:, 1:, :pool],
        (-0.35 * order).log_softmax(-1) - 0.2,
        (0.4 * torch.randn(count, depth, pool, pool)).bfloat16(),
        torch.linspace(0.5, 1.5, count, dtype=torch.float64),
    )
    found = path_candidates(*(tensor.to(device) for tensor in host))
    wanted = path_candidates_reference(*host)
    expect_equal("path_candidates", found[0], wanted[0])
    torch.testing.assert_close(found[1].cpu(), wanted[1], rtol=2e-5, atol=2e-5)
    return count * (depth + 1), float((found[1].cpu() - wanted[1]).abs().max())
