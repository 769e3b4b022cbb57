"""Whether tree decoding wrote what plain decoding writes, and how close a difference was.

Tree decoding is lossless: in float32 a difference is a fault. In 16-bit types a row of logits
depends a little on how many rows share its pass, so two tokens that are nearly tied may change
places; a difference then says by how much the plain run preferred its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.noise import gumbel
from jetflow_core.picker import TokenPicker
from jetflow_core.sampling import SamplingParams

# Roundings of 16-bit sums that may add up in one logit; more is no rounding error.
_ROUNDINGS = 4


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two runs part, and what the plain run thought there."""

    index: int
    """Of the first differing token, counted from 0 in the answer."""
    plain: int | None
    """The plain run's token; None if it ended before."""
    tree: int | None
    """The tree run's token; None if it ended before."""
    gap: float
    """Largest minus second largest raw logit of the plain run."""
    margin: float
    """The same of what decided: penalties and bias applied; with sampling the law and its noise."""
    rounding: float
    """What rounding in the target's type can do to a logit of this size."""

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding can explain the difference; never in float32 or wider."""
        return self.margin <= self.rounding


def first_difference(plain: Sequence[int], tree: Sequence[int]) -> int | None:
    """Index of the first token in which the two differ, one being longer included; None: equal."""
    for index, (one, other) in enumerate(zip(plain, tree, strict=False)):
        if one != other:
            return index
    return None if len(plain) == len(tree) else min(len(plain), len(tree))


def rounding_of(row: Tensor, dtype: torch.dtype) -> float:
    """What rounding to ``dtype`` can do to the largest logit of a row; 0 in float32 and wider."""
    if dtype not in (torch.bfloat16, torch.float16):
        return 0.0
    return _ROUNDINGS * torch.finfo(dtype).eps * float(row.max().abs())


def explain_difference(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    plain: Sequence[int],
    tree: Sequence[int],
) -> Difference | None:
    """The first difference of two answers to ``prompt``, with the plain run's logits there.

    Args:
        engine: the models; plain decoding is repeated up to the difference.
        prompt: token ids.
        params: of both runs, with the seed that both had.
        plain: the plain run's tokens.
        tree: the tree run's tokens.

    Returns:
        None if the answers are equal.
    """
    index = first_difference(plain, tree)
    if index is None:
        return None
    row = _plain_row(engine, prompt, params, index)
    return Difference(
        index=index,
        plain=plain[index] if index < len(plain) else None,
        tree=tree[index] if index < len(tree) else None,
        gap=_lead(row),
        margin=_lead(_deciding_scores(engine, prompt, params, row, list(plain[:index]))),
        rounding=_rounding(row, engine.target.dtype, params),
    )


def _plain_row(engine: Engine, prompt: Sequence[int], params: SamplingParams, index: int) -> Tensor:
    """Raw logits of the plain run before token ``index``, from the same passes it made."""
    rows: list[Tensor] = []

    def keep(before: Sequence[int], generated: Sequence[int], logits: Tensor) -> Tensor:
        rows.append(logits.clone())
        return logits if own is None else own(before, generated, logits)

    own = params.logits_processor
    watched = replace(
        params,
        logits_processor=keep,
        max_new_tokens=index + 1,
        min_new_tokens=min(params.min_new_tokens, index + 1),
    )
    engine.generate(prompt, watched, TreeOptions(budget=1))
    return rows[-1]


def _deciding_scores(
    engine: Engine,
    prompt: Sequence[int],
    params: SamplingParams,
    row: Tensor,
    generated: Sequence[int],
) -> Tensor:
    """What the pick was the largest of, for the tokens that were allowed."""
    # A greedy request's law is a single token; at temperature 1 the law holds all its logits.
    drawn = (
        params
        if not params.is_greedy
        else replace(params, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    )
    target = engine.target
    picker = TokenPicker(drawn, prompt, target.eos_token_ids, target.vocab_size)
    law = picker.probabilities(row, generated).cpu()
    ids = law.nonzero().flatten()
    scores = law[ids].log()
    if params.is_greedy:
        return scores
    return scores + torch.from_numpy(gumbel(picker.seed, len(prompt) + len(generated), ids.numpy()))


def _lead(scores: Tensor) -> float:
    best = scores.double().topk(min(2, len(scores))).values
    return float(best[0] - best[-1]) if len(best) == 2 else float("inf")


def _rounding(row: Tensor, dtype: torch.dtype, params: SamplingParams) -> float:
    size = rounding_of(row, dtype)
    return size if params.is_greedy else size / params.temperature
