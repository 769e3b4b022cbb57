"""From the head's rows to candidates, with the steps of a round and of a layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from jetflow_core.head.model import DraftHead
from jetflow_core.head.path import PathTerm
from jetflow_core.head.proposal import each_depths_best
from jetflow_core.rounds.ops import RoundOps
from jetflow_core.rounds.torch_paths import tempered
from jetflow_core.stacks import LayerOps


class RoundTable:
    """What ``head.proposal.draft_candidates`` gives, in few launches and tempered.

    Args:
        head: the draft head.
        embedding: the target's embedding ``[vocab, hidden]``.
        ops: the steps of a round.
        layer_ops: the steps of a layer.
    """

    def __init__(
        self, head: DraftHead, embedding: Tensor, ops: RoundOps, layer_ops: LayerOps
    ) -> None:
        self._head, self._embedding = head, embedding
        self._ops, self._layer_ops = ops, layer_ops
        vocabulary, config = embedding.shape[0], head.config
        self._width = min(config.candidates, vocabulary)
        self._pool = min(max(self._width, config.candidate_pool), vocabulary)
        self._tempered = bool(config.score_temperatures)
        ones = embedding.new_ones
        self._unit = {size: ones(size) for size in (config.hidden_size, config.path_rank)}
        # The parents of depth 2 are the candidates of depth 1, and lines nobody reads.
        self._parents_of_depth_2 = torch.arange(self._pool, device=embedding.device) % self._width

    def candidates(
        self, roots: Tensor, hidden: Tensor, logits: Tensor, temperatures: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Candidates of all depths.

        Args:
            roots: int32 ``[R]``.
            hidden: ``[R, D, hidden]``, the head's rows of depths 1..D, D at least 1.
            logits: ``[R, D, vocab]`` of these rows.
            temperatures: float64 ``[R]``: what the scores of a request are divided by; all 1 for a
                head that has none.

        Returns:
            int32 ``[R, D, K]``, and ``[R, D, P, K]`` of at least float32, P = K with a path term.
        """
        requests, depth, _ = logits.shape
        top = self._ops.depth_topk(logits.flatten(0, 1), self._pool)
        tokens = top.tokens.view(requests, depth, self._pool)
        scores = top.log_probs.view(requests, depth, self._pool)
        path = self._head.path
        if path is None:
            return tokens, self._over(scores.unsqueeze(2), temperatures)
        first_tokens, first = self._depth_1(path, roots, hidden[:, 0], logits[:, 0])
        if self._pool == self._width:
            found, table = each_depths_best(
                path, self._embedding, hidden[:, 1:], (first_tokens.long(), first),
                tokens[:, 1:].long(), scores[:, 1:],
            )  # fmt: skip
            first_table = first[:, None, None].expand(-1, 1, self._width, -1)
            whole = torch.cat([first_table, table], dim=1).clamp(max=0.0)
            return (
                torch.cat([first_tokens[:, None], found.int()], dim=1),
                self._over(whole, temperatures),
            )
        return self._ops.path_candidates(
            first_tokens, first, tokens[:, 1:], scores[:, 1:],
            self._bias(path, first_tokens, tokens, hidden), temperatures,
        )  # fmt: skip

    def _depth_1(
        self, path: PathTerm, roots: Tensor, hidden: Tensor, logits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The parent of depth 1 is the root, which is known: exact over all tokens."""
        bias = self._layer_ops.linear(self._vectors(path, roots, hidden), path.out.weight)
        top = self._ops.depth_topk(_wide(logits) + bias, self._width)
        return top.tokens, top.log_probs

    def _bias(self, path: PathTerm, first_tokens: Tensor, tokens: Tensor, hidden: Tensor) -> Tensor:
        """``[R, D - 1, Q, Q]``: of every token that may be a parent, with every one that follows.

        Which of them will be candidates is not known yet, but so no depth waits for another.
        """
        parents = torch.cat(
            [first_tokens[:, None, self._parents_of_depth_2], tokens[:, 1:-1]], dim=1
        )[:, : tokens.shape[1] - 1]
        vectors = self._vectors(path, parents.flatten(), hidden[:, 1:].flatten(0, 1))
        outs = path.out.weight[tokens[:, 1:]]
        return vectors.view(*parents.shape, -1) @ outs.transpose(-1, -2)

    def _vectors(self, path: PathTerm, tokens: Tensor, hidden: Tensor) -> Tensor:
        """``[N, rank]``, as ``path.parent_vectors``; N / M tokens in a row share a state.

        Args:
            path: the path term.
            tokens: ``[N]``, the parents.
            hidden: ``[M, hidden]``; M divides N.
        """
        ops, eps = self._layer_ops, path.eps
        of_rank, of_hidden = (self._unit[w.shape[0]] for w in (path.inner.weight, hidden[0]))
        embedded = ops.rms_norm(self._embedding[tokens], of_hidden, eps)
        vectors = ops.rms_norm(ops.linear(embedded, path.inner.weight), of_rank, eps)
        if path.context is None:
            return vectors
        states = ops.linear(ops.rms_norm(hidden, of_hidden, eps), path.context.weight)
        mixed = vectors.unflatten(0, (hidden.shape[0], -1)) + states[:, None]
        return ops.rms_norm(functional.silu(mixed).flatten(0, 1), of_rank, eps)

    def _over(self, log_probs: Tensor, temperatures: Tensor) -> Tensor:
        return tempered(log_probs, temperatures) if self._tempered else log_probs


def _wide(logits: Tensor) -> Tensor:
    """At least float32: rounding the sum of logit and path term would make ties."""
    return logits if logits.dtype == torch.float64 else logits.float()
