"""Interpreted, or on a CUDA device: what the benchmark times is right, and what is not is told."""

from __future__ import annotations

import pytest
import torch
from jetflow_kernels.round import bench, contests, contests_target
from jetflow_kernels.round.contests import Sizes
from jetflow_kernels.round.whole import Round

pytestmark = pytest.mark.usefixtures("on_the_device", "rounding_as_on_a_device")

SMALL = Sizes(
    vocabulary=500, depth=4, candidates=4, rows=(4, 12), layers=2, heads=2, dim=16, page=4,
    accepted=3, features=8, copies=2,
)  # fmt: skip


def test_every_step_equals_its_reference_and_its_peers_run() -> None:
    torch.manual_seed(0)
    names = set()
    device = torch.get_default_device().type
    with torch.device("cpu"):
        for make in bench.all_contests(SMALL, device):
            for contest in make():
                contest.check()
                contest.ours[-1]()
                for calls in contest.peers.values():
                    assert len(calls) == len(contest.ours)
                    calls[-1]()
                if contest.host is not None:
                    assert bench.host_us(contest.host) > 0
                names.add(contest.name)
    assert names == {
        "depth_topk", "pick_argmax", "build_tree", "build_all_children", "pack_ancestors",
        "tree_slots", "accept_walk", "commit_path", "accept_walk + commit_path",
        "pick_sampled", "norm_rope_kv_write",
    }  # fmt: skip


def test_a_whole_round() -> None:
    torch.manual_seed(0)
    whole = Round.random(SMALL, torch.get_default_device().type)
    results = whole.run()
    assert whole.check(results) == SMALL.accepted
    results.trees.parents[0, 3] += 1
    with pytest.raises(RuntimeError, match="build_tree differs"):
        whole.check(results)


def test_a_difference_is_told() -> None:
    contests_target.expect_near("this", torch.ones(2), torch.ones(2) + 1e-7)
    with pytest.raises(RuntimeError, match="this differs from its reference"):
        contests_target.expect_near("this", torch.ones(2), torch.tensor([1.0, torch.nan]))
    with pytest.raises(RuntimeError, match="this differs from its reference"):
        contests.expect_equal("this", torch.ones(2), torch.zeros(2))
