"""Tree attention through flash-attn 4; waits for nothing after its kernel is compiled.

What flash-attn leaves open is done around its call: rows of padding, the layout of the log-sum-exp
and the caller's own output.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from jetflow_kernels.arguments import TreeAttentionArguments
from jetflow_kernels.attention.flash.library import load
from jetflow_kernels.attention.flash.mask import half_words, tree_mask
from jetflow_kernels.attention.plan import WORD_BITS


@torch.no_grad()
def launch(
    arguments: TreeAttentionArguments, *, out: Tensor, lse: Tensor | None, scale: float
) -> None:
    """Computes ``out`` and ``lse`` on the current stream; can be captured in a CUDA graph.

    The first call in a process imports flash-attn, and the first of a type and head dim compiles
    its kernel, for tens of seconds; neither can be captured. Where pages have ``WHOLE_PAGE`` rows,
    the slots behind a request's last row in its page are multiplied by weights of 0: their values
    must be finite, which the other versions do not ask for.

    Args:
        arguments: checked by ``check_layout`` and ``check_kernel_limits``, and such that
            ``supports`` and ``unavailable`` have nothing against them.
        out: [T, Hq, D], every row is written.
        lse: [T, Hq] float32, or None.
        scale: factor of the scores, above 0.

    Raises:
        ValueError: ``scale`` is 0 or less: its softmax takes the largest score before scaling.
        FlashError: flash-attn cannot be imported or is too old.
    """
    check_scale(scale)
    rows, words = arguments.ancestors.shape
    attend_pages(
        arguments,
        out=out,
        lse=lse,
        longest=min(rows, WORD_BITS * words),
        options={
            "softmax_scale": scale,
            "mask_mod": tree_mask(),
            "aux_tensors": [half_words(arguments.ancestors)],
        },
    )


def check_scale(scale: float) -> None:
    """Refuses a scale that flash-attn cannot take.

    Raises:
        ValueError: naming it.
    """
    if not scale > 0:
        raise ValueError(f"backend 'flash' takes scales above 0, got {scale}")


def attend_pages(
    arguments: TreeAttentionArguments,
    *,
    out: Tensor,
    lse: Tensor | None,
    longest: int,
    options: dict[str, object],
) -> None:
    """One call of flash-attn over pages, its results put where they belong.

    Args:
        arguments: as in ``launch``; the words are not looked at.
        out: as there.
        lse: as there.
        longest: rows of a request at most.
        options: what the call is given beside tensors and lengths.
    """
    q, starts = arguments.q, arguments.cu_nodes.contiguous()
    if not len(q):
        return
    if len(starts) == 1:
        out.zero_()
        if lse is not None:
            lse.fill_(-math.inf)
        return
    found, found_lse = load().attend(
        q,
        arguments.k_pool,
        arguments.v_pool,
        cu_seqlens_q=starts,
        seqused_k=starts.diff() + arguments.prefix_len,
        max_seqlen_q=longest,
        page_table=arguments.page_table.contiguous(),
        return_lse=lse is not None,
        **options,
    )[:2]
    # Rows behind the last request are memory that nobody wrote.
    used = torch.arange(len(q), device=q.device) < starts[-1]
    torch.where(used[:, None, None], found, q.new_zeros(()), out=out)
    if lse is not None:
        nothing = lse.new_full((), -math.inf)
        torch.where(used[:, None], found_lse.T, nothing, out=lse)
