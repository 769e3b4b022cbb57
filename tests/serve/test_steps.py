"""The parts of a step with trees, without vLLM: staging, moving, context rows, blocks, drawing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_core.head.config import HeadConfig
from jetflow_serve import stage
from jetflow_serve.blocks import lay_out, reach
from jetflow_serve.context_rows import context_rows
from jetflow_serve.counters import Counters
from jetflow_serve.drawing import Seeds, draw
from jetflow_serve.growing import grow
from jetflow_serve.options import ServeOptions
from jetflow_serve.reasons import Asked, Choice, Shape, choose
from jetflow_tree import Accepted, Candidates, Tree, walk

TREE = Tree.from_parents([9, 1, 2, 3, 4], [-1, 0, 0, 1, 2])
CHAIN = Tree.from_parents([9, 1, 2], [-1, 0, 1])


@st.composite
def trees(draw_: st.DrawFn, most: int = 12) -> Tree:
    """Trees whose rows carry their own number, so that siblings always differ."""
    rows = draw_(st.integers(1, most))
    parents = [-1] + [draw_(st.integers(0, row - 1)) for row in range(1, rows)]
    return Tree.from_parents([100 + row for row in range(rows)], parents)


def test_each_request_gets_its_rows() -> None:
    staged = stage.stage(
        ["a", "b", "c"],
        [4, 10, 1],
        [20, 0, 7],
        {"a": [1, 2, 3]},
        {"a": TREE, "c": CHAIN},
    )
    assert staged[1:] == [None, None]
    entry = staged[0]
    assert entry is not None
    assert (entry.rows, entry.branches) == (slice(0, 4), True)
    assert entry.positions().tolist() == [20, 21, 21, 22]
    assert entry.sight().tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, False, True, False],
        [True, True, False, True],
    ]


def test_a_chain_is_plain_causal() -> None:
    (entry,) = stage.stage(["a"], [3], [5], {"a": [1, 2]}, {"a": CHAIN})
    assert entry is not None
    assert not entry.branches
    assert entry.positions().tolist() == [5, 6, 7]


@pytest.mark.parametrize(
    ("verified", "rows"),
    [([1, 2, 3, 4, 5], 6), ([2, 1], 3), ([1, 2], 4), ([1], 2)],
    ids=["more than drafted", "another order", "other rows", "nothing drafted"],
)
def test_other_drafts_than_ours_stop_the_engine(verified: list[int], rows: int) -> None:
    drafts = {} if verified == [1] else {"a": TREE}
    with pytest.raises(stage.DraftsDiffer, match="request a"):
        stage.stage(["a"], [rows], [5], {"a": verified}, drafts)


@given(trees(), st.integers(0, 30), st.data())
def test_moved_rows_and_context_rows_are_the_accepted_path(
    tree: Tree, context: int, data: st.DataObject
) -> None:
    """However picks fall, the text after the step is root and path, in order."""
    entry = stage.Staged("a", 3, context, tree)
    picks = [data.draw(st.sampled_from([7, *tree.tokens.tolist()])) for _ in tree.tokens]
    accepted = walk(tree, picks)
    # A cache of tokens: rows of another request, then the tree's.
    cache = np.array([50, 51, 52, *tree.tokens])
    pairs = stage.moves(entry, accepted)
    assert all(source > target for source, target in pairs)
    cache[[target for _, target in pairs]] = cache[[source for source, _ in pairs]]
    kept = 1 + len(accepted.nodes)
    assert cache[3 : 3 + kept].tolist() == [tree.tokens[0], *accepted.tokens]
    rows = context_rows(
        [3, tree.num_nodes], [8, context], [None, entry], [Accepted((), (), 0), accepted]
    )
    assert rows.sources.tolist() == [0, 1, 2, 3, *(3 + node for node in accepted.nodes)]
    assert rows.places.tolist() == list(range(3 + kept))
    assert rows.positions.tolist() == [8, 9, 10, *range(context, context + kept)]
    assert rows.ends.tolist() == [3, 3 + kept]


def _head(**options: object) -> HeadConfig:
    values: dict[str, object] = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_layers": 1,
        "num_heads": 1,
        "num_kv_heads": 1,
        "head_dim": 8,
        "vocab_size": 50,
        "block_size": 6,
        "num_target_layers": 2,
        "target_layer_ids": (0,),
        "mask_token_id": 1,
        "max_position_embeddings": 100,
    }
    return HeadConfig(**{**values, **options})


@pytest.mark.parametrize(
    ("place", "longest", "deepest"),
    [(10, 200, 5), (94, 200, 5), (95, 200, 4), (98, 200, 1), (99, 200, 0), (150, 200, 0),
     (40, 46, 5), (40, 45, 4), (44, 45, 0)],
)  # fmt: skip
def test_no_draft_stands_beyond_the_end(place: int, longest: int, deepest: int) -> None:
    assert reach(_head(), 5, place, longest) == deepest
    # A bidirectional block is drafted whole or not at all.
    assert reach(_head(causal=False), 3, place, longest) == (3 if deepest == 5 else 0)


def test_blocks_are_ragged() -> None:
    import torch

    table = torch.tensor([[5, 6], [7, 2]], dtype=torch.int32)
    blocks = lay_out([3, 6], [4, 2], table, block=4)
    assert blocks.positions.tolist() == [3, 4, 5, 6, 6, 7]
    assert blocks.slots.tolist() == [23, 24, 25, 26, 10, 11]
    assert blocks.starts.tolist() == [0, 4, 6]
    assert blocks.lengths.tolist() == [7, 8]
    assert blocks.taken.sum(1).tolist() == [4, 2]


def test_shapes_are_chosen_for_each_need() -> None:
    assert choose(Asked()).shape is Shape.TREE
    assert choose(Asked()).reason is None
    for need, shape in (
        ("penalties", Shape.CHAIN),
        ("bad_words", Shape.CHAIN),
        ("structured_output", Shape.CHAIN),
        ("thinking_budget", Shape.PLAIN),
        ("logprob_token_ids", Shape.PLAIN),
    ):
        found = choose(Asked(**{need: True}))
        assert (found.shape, found.reason) == (shape, need)
    assert choose(Asked(penalties=True, thinking_budget=True)).shape is Shape.PLAIN


def test_a_request_may_have_a_budget_of_its_own() -> None:
    assert choose(Asked(budget=5)) == Choice(Shape.TREE, None, 5)
    assert choose(Asked(budget=5, bad_words=True)) == Choice(Shape.CHAIN, "bad_words", 5)
    for off in (1, "off"):
        assert choose(Asked(budget=off)) == Choice(Shape.PLAIN, "off")
    for wrong in (0, -3, True, 2.5, "many", [4]):
        assert choose(Asked(budget=wrong)) == Choice(Shape.PLAIN, "no budget")


def test_what_grows() -> None:
    found = Candidates.marginal([[5, 9], [3, 4]], [[-0.6, -0.9], [-0.6, -0.9]])

    def grown(shape: Shape, nodes: int, options: ServeOptions) -> list[int]:
        return grow(7, found, shape, nodes, 0.0, _head(), options).tokens.tolist()

    trees_, chains = ServeOptions(), ServeOptions(mode="chain")
    assert grown(Shape.TREE, 3, trees_) == [7, 5, 9, 3]
    assert grown(Shape.TREE, 3, ServeOptions(max_children=1)) == [7, 5, 3]
    assert grown(Shape.CHAIN, 3, trees_) == grown(Shape.TREE, 3, chains) == [7, 5, 3]
    assert grown(Shape.PLAIN, 3, trees_) == grown(Shape.TREE, 0, trees_) == [7]


def test_draws_follow_the_law_and_the_key() -> None:
    import torch

    law = torch.tensor([0.5, 0.3, 0.2, 0.0])
    found = [draw(law.log(), 11, place) for place in range(4000)]
    shares = np.bincount(found, minlength=4) / len(found)
    # Three standard deviations of a share.
    np.testing.assert_allclose(shares, law.numpy(), atol=0.025)
    assert shares[3] == 0.0
    assert found == [draw(law.log(), 11, place) for place in range(4000)]
    assert found[:60] != [draw(law.log(), 12, place) for place in range(60)]
    assert draw(law.log(), -1, 5) == draw(law.log(), 2**64 - 1, 5)


def test_seeds_are_kept_while_a_request_lives() -> None:
    seeds, again = Seeds(3), Seeds(3)
    assert seeds.of("a", 42) == 42
    first = seeds.of("a", None)
    assert seeds.of("b", None) != first
    assert seeds.of("a", None) == first == again.of("x", None)
    seeds.forget("a")
    assert seeds.of("a", None) != first


def test_counters_sum() -> None:
    counters = Counters()
    counters.drafted("tree", None)
    counters.drafted("chain", "penalties")
    counters.verified(TREE, Accepted((1, 3), (1, 3), 8), branching=True, moved=1)
    counters.verified(CHAIN, Accepted((1,), (1,), 8), branching=False, moved=0)
    counters.decoded()
    assert counters.to_dict() == {
        "rounds": 2,
        "branching": 1,
        "nodes": 6,
        "accepted": 3,
        "moved": 1,
        "accepted_by_depth": {1: 2, 2: 1},
        "shapes": {"tree": 1, "chain": 1},
        "reasons": {"penalties": 1},
        "plain": 1,
        "rows": {3: 1, 5: 1},
        "depths": {2: 2},
        "auto": {},
    }
