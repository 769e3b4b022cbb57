"""All steps of a round on one request, one after the other, as one graph can hold them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from jetflow_kernels.round.accept import AcceptedBatch, accept_walk, accept_walk_reference
from jetflow_kernels.round.ancestors import pack_ancestors, pack_ancestors_reference
from jetflow_kernels.round.argmax import pick_argmax, pick_argmax_reference
from jetflow_kernels.round.build import build_tree
from jetflow_kernels.round.build_reference import build_tree_reference
from jetflow_kernels.round.contests import Cache, Sizes, expect_equal, random_logits
from jetflow_kernels.round.slots import tree_slots, tree_slots_reference
from jetflow_kernels.round.topk import TopTokens, depth_topk
from jetflow_kernels.round.trees import TreeBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What the steps of one round leave behind, each made by the one before."""

    top: TopTokens
    trees: TreeBatch
    packed: tuple[Tensor, Tensor]
    slots: Tensor
    picks: tuple[Tensor, Tensor]
    paths: AcceptedBatch
    features: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Inputs of a round; the target's logits stand for its pass."""

    sizes: Sizes
    head_logits: Tensor
    target_logits: Tensor
    root: Tensor
    budget: Tensor
    cache: Cache

    @classmethod
    def random(cls, sizes: Sizes, device: str) -> Round:
        """A round whose target agrees with ``sizes.accepted`` rows of the tree, or fewer."""
        rows = max(sizes.rows)
        made = cls(
            sizes=sizes,
            head_logits=random_logits(sizes.depth, sizes, device, torch.bfloat16),
            target_logits=random_logits(rows, sizes, device, torch.bfloat16),
            root=torch.ones(1, dtype=torch.int32, device=device),
            budget=torch.full((1,), rows, dtype=torch.int32, device=device),
            cache=Cache.random(sizes, rows, device),
        )
        # Peaked, as a trained head's are: one token at each depth stands out.
        made.head_logits[:, : sizes.depth] += 22.0 * torch.eye(sizes.depth, device=device).to(
            torch.bfloat16
        )
        made.agree()
        return made

    def agree(self) -> None:
        """Lets the target pick the deepest path of the tree that the head's logits give."""
        trees = self._tree(depth_topk(self.head_logits, self.sizes.candidates))
        parents, tokens = trees.parents[0].tolist(), trees.tokens[0].tolist()
        row = int(trees.depths[0].argmax())
        path = []
        while row > 0:
            path.append(row)
            row = parents[row]
        for below in path[::-1][: self.sizes.accepted]:
            self.target_logits[parents[below], tokens[below]] = 100.0

    def run(self) -> Results:
        """All steps; no host wait between them."""
        top = depth_topk(self.head_logits, self.sizes.candidates)
        trees = self._tree(top)
        slots = tree_slots(
            self.cache.table, self.cache.prefix, trees.num_nodes,
            capacity=max(self.sizes.rows), page=self.sizes.page,
        )  # fmt: skip
        picks = pick_argmax(self.target_logits)
        walked = (trees.tokens, trees.parents, trees.num_nodes, picks[0][None])
        paths = accept_walk(*walked, max_depth=self.sizes.depth)
        return Results(
            top=top,
            trees=trees,
            packed=pack_ancestors(trees.parents, trees.num_nodes),
            slots=slots,
            picks=picks,
            paths=paths,
            features=self.cache.commit(paths.rows),
        )

    def _tree(self, top: TopTokens) -> TreeBatch:
        return build_tree(*self._candidates(top), capacity=max(self.sizes.rows))

    def _candidates(self, top: TopTokens) -> tuple[Tensor, ...]:
        depth, width = self.sizes.depth, self.sizes.candidates
        return (
            top.tokens.view(1, depth, width), top.log_probs.view(1, depth, 1, width), self.root,
            self.budget, self.cache.prefix,
        )  # fmt: skip

    def check(self, found: Results) -> int:
        """Holds every step against its reference on the step's own inputs.

        Returns:
            Accepted rows.

        Raises:
            RuntimeError: a step differs, or nothing was accepted.
        """
        given = [tensor.cpu() for tensor in self._candidates(found.top)]
        rows = max(self.sizes.rows)
        trees = build_tree_reference(*given, capacity=rows)
        expect_equal(
            "build_tree", tuple(found.trees.tensors().values()), tuple(trees.tensors().values())
        )
        expect_equal(
            "pack_ancestors", found.packed, pack_ancestors_reference(trees.parents, trees.num_nodes)
        )
        expect_equal("pick_argmax", found.picks, pick_argmax_reference(self.target_logits))
        slots = tree_slots_reference(
            self.cache.table.cpu(), self.cache.prefix.cpu(), trees.num_nodes,
            capacity=rows, page=self.sizes.page,
        )  # fmt: skip
        expect_equal("tree_slots", found.slots, slots)
        walked = (trees.tokens, trees.parents, trees.num_nodes, found.picks[0].cpu()[None])
        paths = accept_walk_reference(*walked, max_depth=self.sizes.depth)
        expect_equal("accept_walk", found.paths, paths)
        accepted = int(paths.accepted[0])
        kept = paths.rows[0][: accepted + 1].long()
        expect_equal(
            "features", found.features[0, : accepted + 1], self.cache.features[0].cpu()[kept]
        )
        if accepted == 0:
            raise RuntimeError("the round accepted nothing; nothing was timed")
        return accepted
