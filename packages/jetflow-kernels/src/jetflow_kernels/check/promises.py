"""What each version of tree attention takes and promises, as far as the lists ask for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from jetflow_kernels.attention.flash.limits import WHOLE_PAGE

HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """Of one version."""

    types: tuple[torch.dtype, ...]
    dims: tuple[int, ...]
    """Head dims."""
    by_request: bool = True
    """Whether it can give a request the same bits alone and in every batch."""
    any_page: bool = True
    """Whether bits are the same for pages of every size."""
    lse_atol: float = 1e-5
    """Error of a log-sum-exp at most."""
    finite_page: int = 0
    """Rows of the pages in which it also reads slots that no row can see; 0: it never does."""


PROMISES = {
    "triton": Promises(types=(*HALVES, torch.float32), dims=(64, 128, 256)),
    "cuda": Promises(types=HALVES, dims=(64, 128)),
    # Its exponentials and logarithms are approximations of its own.
    "flash": Promises(
        types=HALVES,
        dims=(64, 128),
        by_request=False,
        any_page=False,
        lse_atol=1e-4,
        finite_page=WHOLE_PAGE,
    ),
}
