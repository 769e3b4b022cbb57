"""The device's side of ``auto`` over many rounds: a head that exaggerates is seen through."""

import numpy as np
import pytest
import torch
from jetflow_core.rounds import TorchRoundOps, TreeBatch
from jetflow_core.rounds.auto.batch_trees import BatchTrees
from torch import Tensor

DEPTH, WIDTH, REQUESTS, ROWS, TOTAL = 5, 4, 3, 32, 36
CPU = torch.device("cpu")


def _walk(
    trees: TreeBatch, counts: Tensor, tokens: Tensor, true: np.ndarray, draw: np.random.Generator
) -> tuple[Tensor, int]:
    """Walks whose next token is drawn from the true chances of each rank."""
    paths, kept = torch.full((REQUESTS, DEPTH + 1), -1), 0
    for request in range(REQUESTS):
        row, paths[request, 0] = 0, 0
        for depth in range(DEPTH):
            rank = int(np.searchsorted(true[depth].cumsum(), draw.random(), side="right"))
            if rank == WIDTH:
                break
            wanted = int(tokens[request, depth, rank])
            mine = [
                child for child in range(1, int(counts[request]))
                if int(trees.parents[request, child]) == row
                and int(trees.tokens[request, child]) == wanted
            ]  # fmt: skip
            if not mine:
                break
            row = mine[0]
            paths[request, depth + 1] = row
            kept += 1
    return paths.int(), kept


@pytest.mark.slow
@pytest.mark.parametrize("claimed", [0.9, 0.35])
def test_what_trees_promise_becomes_what_they_keep(claimed: float) -> None:
    """Its best candidate is right at 0.6, its second at 0.2; it claims otherwise."""
    true = np.tile([0.6, 0.2, 0.05, 0.02], (DEPTH, 1))
    stated = np.tile([claimed, *((1 - claimed) * np.array([0.2, 0.3, 0.3]))], (DEPTH, 1))
    scores = torch.from_numpy(np.log(stated))[None, :, None].expand(REQUESTS, -1, -1, -1)
    draw, ops = np.random.default_rng(0), TorchRoundOps()
    batch = BatchTrees.empty(DEPTH, CPU)
    batch.total.fill_(TOTAL)
    live = torch.ones(REQUESTS, dtype=torch.bool)
    roots = torch.zeros(REQUESTS, dtype=torch.int32)
    tokens = torch.arange(DEPTH * WIDTH).view(DEPTH, WIDTH).expand(REQUESTS, -1, -1).int()
    promises, kept = [], []
    for _ in range(200):
        trees = ops.build_tree(
            tokens, batch.acceptance.calibrated(scores), roots, roots + ROWS, roots, capacity=ROWS
        )
        counts = batch.counts(trees, live, deepest=DEPTH)
        assert int(counts.sum()) == TOTAL
        paths, found = _walk(trees, counts, tokens, true, draw)
        batch.acceptance.learn(tokens, scores, trees, counts, paths)
        promises.append(float(batch.promise[-1]) - 1.0)
        kept.append(found / REQUESTS)
    first, last = promises[0], float(np.mean(promises[-100:]))
    truth = float(np.mean(kept[-100:]))
    assert abs(first - truth) > 0.25 * truth
    assert last == pytest.approx(truth, rel=0.15)
    # The second candidate is worth more than the third, whatever the head says.
    ratios = batch.acceptance.ratios()[0, :3] * torch.from_numpy(stated[0, :3])
    assert ratios.tolist() == sorted(ratios.tolist(), reverse=True)
    assert float(ratios[0]) == pytest.approx(0.6, abs=0.1)
