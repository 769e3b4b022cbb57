"""A tree pass against the plain model, run path by path with transformers' own attention."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jetflow_core.session as session_module
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.layouts import BatchedLayout
from jetflow_core.session import CachedSession
from jetflow_core.target import Target
from jetflow_tree import Tree
from torch import Tensor

KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe")
VOCAB = 128
tokens_of_text = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)


@pytest.fixture(scope="module")
def plain_model(tiny_model: Callable[..., Any]) -> Any:
    """The model of `tiny_target`, untouched."""
    return tiny_model("qwen3")


@pytest.fixture(scope="module", params=["chosen", "batched"])
def layouts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every pass in the layout the session chooses here, then in the one a GPU's batches take."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "batched":
            patch.setattr(session_module, "SlotwiseLayout", BatchedLayout)
        yield


@st.composite
def trees(draw: st.DrawFn, root: int | None = None, max_rows: int = 24) -> Tree:
    """Any tree; the drawn parents are taken modulo the rows that exist."""
    tokens = [draw(st.integers(0, VOCAB - 1)) if root is None else root]
    parents = [-1]
    drawn = st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, VOCAB - 1)), max_size=max_rows - 1
    )
    for choice, token in draw(drawn):
        parent = choice % len(tokens)
        if (parent, token) not in zip(parents, tokens, strict=True):
            parents.append(parent)
            tokens.append(token)
    return Tree.from_parents(tokens, parents)


def random_tree(rng: np.random.Generator, root: int, rows: int, window: int = 5) -> Tree:
    """A tree whose rows hang below one of the `window` rows before them."""
    parents = [-1, *(int(rng.integers(max(0, row - window), row)) for row in range(1, rows))]
    return Tree.from_parents([root, *rng.permutation(VOCAB)[: rows - 1].tolist()], parents)


def random_path(rng: np.random.Generator, tree: Tree, max_depth: int) -> list[int]:
    shallow = np.flatnonzero(tree.depths <= max_depth)
    return [0, *tree.path(int(rng.choice(shallow)))]


def chain_logits(model: Any, prompt: Sequence[int], tree: Tree) -> Tensor:
    """Last logits of every row's own path, run as plain text behind the prompt."""
    texts = [
        [*prompt[:-1], tree.tokens[0], *tree.tokens[list(tree.path(row))].tolist()]
        for row in range(tree.num_nodes)
    ]
    longest = max(map(len, texts))
    padded = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    with torch.no_grad():
        logits = model(padded, use_cache=False).logits
    return torch.stack([logits[i, len(text) - 1] for i, text in enumerate(texts)])


def prefilled(target: Target, *prompts: Sequence[int], **options: Any) -> CachedSession:
    session = CachedSession(target, **{"capacity": 255, "num_slots": len(prompts), **options})
    for slot, prompt in enumerate(prompts):
        session.prefill(slot, prompt)
    return session


def committed(session: CachedSession, slot: int) -> Tensor:
    return session.cache.buffer[:, :, slot, :, : session.length(slot)]


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(prompt=tokens_of_text, tree=trees())
def test_a_node_has_the_logits_of_its_path_as_a_chain(
    prompt: list[int], tree: Tree, tiny_target: Target, plain_model: Any
) -> None:
    session = prefilled(tiny_target, prompt)
    (out,) = session.verify([0], [tree])
    assert out.logits.shape == (tree.num_nodes, VOCAB)
    assert out.features.shape == (tree.num_nodes, 3 * 64)
    assert_close(out.logits, chain_logits(plain_model, prompt, tree))
    assert session.length(0) == len(prompt) - 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_family(kind: str, tiny_model: Callable[..., Any]) -> None:
    rng = np.random.default_rng(1)
    plain = tiny_model(kind)
    text = rng.integers(0, VOCAB, 19).tolist()
    session = prefilled(Target.from_model(tiny_model(kind)), text)
    for _ in range(3):
        tree = random_tree(rng, text[-1], 20)
        (out,) = session.verify([0], [tree])
        assert_close(out.logits, chain_logits(plain, text, tree))
        assert out.features.shape == (20, 0)
        rows = random_path(rng, tree, 4)
        session.commit(0, rows)
        text += [*tree.tokens[rows[1:]].tolist(), int(rng.integers(0, VOCAB))]


@settings(deadline=None, max_examples=30)
@given(prompt=tokens_of_text, tree=trees(), data=st.data())
def test_a_changed_node_moves_only_itself_and_its_descendants(
    prompt: list[int], tree: Tree, data: st.DataObject, tiny_target: Target
) -> None:
    changed = data.draw(st.integers(0, tree.num_nodes - 1))
    siblings = tree.tokens[tree.parents == tree.parents[changed]].tolist()
    token = data.draw(st.integers(0, VOCAB - 1).filter(lambda token: token not in siblings))
    tokens = tree.tokens.copy()
    tokens[changed] = token
    session = prefilled(tiny_target, prompt)
    (before,) = session.verify([0], [tree])
    (after,) = session.verify([0], [Tree.from_parents(tokens, tree.parents)])
    below = [changed in (0, *tree.path(row)) for row in range(tree.num_nodes)]
    for row, moves in enumerate(below):
        assert torch.equal(before.logits[row], after.logits[row]) != moves
        assert torch.equal(before.features[row], after.features[row]) != moves


@settings(deadline=None, max_examples=20)
@given(prompt=tokens_of_text, tree=trees(), data=st.data())
def test_more_nodes_change_no_row_that_was_there(
    prompt: list[int], tree: Tree, data: st.DataObject, tiny_target: Target
) -> None:
    rows = data.draw(st.integers(1, tree.num_nodes))
    session = prefilled(tiny_target, prompt)
    (whole,) = session.verify([0], [tree])
    (part,) = session.verify([0], [tree.trim(rows)])
    assert_close(part.logits, whole.logits[:rows])


@pytest.mark.usefixtures("layouts")
@pytest.mark.parametrize("lengths", [(7,), pytest.param((3, 9, 17), marks=pytest.mark.slow)])
def test_after_each_commit_the_cache_is_that_of_a_fresh_prefill(
    lengths: tuple[int, ...], tiny_target: Target
) -> None:
    rng = np.random.default_rng(2)
    texts = [rng.integers(0, VOCAB, length).tolist() for length in lengths]
    session = prefilled(tiny_target, *texts)
    fresh = CachedSession(tiny_target, capacity=255)
    jumps = 0
    for _ in range(64):
        grown = [random_tree(rng, text[-1], int(rng.integers(1, 18))) for text in texts]
        session.verify(range(len(texts)), grown)
        for slot, tree in enumerate(grown):
            rows = random_path(rng, tree, 4)
            jumps += rows != list(range(len(rows)))
            session.commit(slot, rows)
            texts[slot] += [*tree.tokens[rows[1:]].tolist(), int(rng.integers(0, VOCAB))]
            fresh.release(0)
            fresh.prefill(0, texts[slot])
            assert_close(committed(session, slot), committed(fresh, 0))
        if max(map(len, texts)) > 230:
            session = _shortened(session, texts)
    assert jumps > 20


def _shortened(session: CachedSession, texts: list[list[int]]) -> CachedSession:
    for slot, text in enumerate(texts):
        del text[20:]
        session.release(slot)
        session.prefill(slot, text)
    return session


@pytest.mark.usefixtures("layouts")
@settings(deadline=None, max_examples=20)
@given(requests=st.lists(st.tuples(tokens_of_text, trees()), min_size=2, max_size=4))
def test_slots_of_one_pass_do_not_feel_each_other(
    requests: list[tuple[list[int], Tree]], tiny_target: Target
) -> None:
    prompts, grown = zip(*requests, strict=True)
    together = prefilled(tiny_target, *prompts)
    # In reverse, so that a slot's place in the pass is not its number.
    slots = list(reversed(range(len(prompts))))
    outputs = together.verify(slots, [grown[slot] for slot in slots])
    for slot, output in zip(slots, outputs, strict=True):
        (alone,) = prefilled(tiny_target, prompts[slot]).verify([0], [grown[slot]])
        assert_close(output.logits, alone.logits)
        assert_close(output.features, alone.features)


@pytest.mark.usefixtures("layouts")
def test_what_is_not_committed_may_be_nan(tiny_target: Target) -> None:
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, VOCAB, length).tolist() for length in (5, 12)]
    clean, poisoned = (
        CachedSession(tiny_target, capacity=100, num_slots=3, max_rows=20) for _ in range(2)
    )
    clean.cache.buffer.zero_()
    for session in (clean, poisoned):
        if session is poisoned:
            _poison(session)
        session.prefill(0, texts[0])
        session.prefill(2, texts[1])
    for _ in range(6):
        grown = [random_tree(rng, text[-1], 16) for text in texts]
        _poison(poisoned)
        for exact, other in zip(
            clean.verify([0, 2], grown), poisoned.verify([0, 2], grown), strict=True
        ):
            assert torch.equal(exact.logits, other.logits)
            assert torch.equal(exact.features, other.features)
        for slot, tree, text in zip((0, 2), grown, texts, strict=True):
            rows = random_path(rng, tree, 3)
            clean.commit(slot, rows)
            poisoned.commit(slot, rows)
            text += [*tree.tokens[rows[1:]].tolist(), int(rng.integers(0, VOCAB))]


def _poison(session: CachedSession) -> None:
    for slot in range(session.cache.num_slots):
        session.cache.buffer[:, :, slot, :, session.length(slot) :] = math.nan


@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_a_prompt_may_be_prefilled_in_chunks(
    chunk: int, tiny_target: Target, plain_model: Any
) -> None:
    prompt = np.random.default_rng(4).integers(0, VOCAB, 130).tolist()
    session = CachedSession(tiny_target, capacity=200, prefill_rows=chunk)
    features = session.prefill(0, prompt).features
    states = plain_model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
    assert features.shape == (129, 192)
    assert_close(features[:, :64], states[1][0, :-1])
    assert_close(features[:, 64:128], states[2][0, :-1])
    tree = Tree.root_only(prompt[-1])
    assert_close(session.verify([0], [tree])[0].logits, chain_logits(plain_model, prompt, tree))


def test_a_prompt_of_one_token_is_its_root(tiny_target: Target, plain_model: Any) -> None:
    session = CachedSession(tiny_target, capacity=10)
    out = session.prefill(0, [42])
    assert (out.features.shape, out.logits.shape) == ((0, 192), (0, VOCAB))
    assert session.length(0) == 0
    tree = Tree.from_parents([42, 1, 2, 3], [-1, 0, 0, 2])
    assert_close(session.verify([0], [tree])[0].logits, chain_logits(plain_model, [42], tree))


def test_a_chain_committed_at_once_or_token_by_token_is_the_same(tiny_target: Target) -> None:
    chain = Tree.from_parents([9, 4, 8, 15], [-1, 0, 1, 2])
    at_once, step_by_step = (prefilled(tiny_target, [3, 9]) for _ in range(2))
    (whole,) = at_once.verify([0], [chain])
    at_once.commit(0, [0, 1, 2, 3])
    for row, token in enumerate(chain.tokens.tolist()):
        (one,) = step_by_step.verify([0], [Tree.root_only(token)])
        assert_close(one.logits[0], whole.logits[row])
        assert_close(one.features[0], whole.features[row])
        step_by_step.commit(0, [0])
    assert at_once.length(0) == step_by_step.length(0) == 5
    assert_close(committed(at_once, 0), committed(step_by_step, 0))


def test_a_second_verify_replaces_the_first(tiny_target: Target) -> None:
    rng = np.random.default_rng(5)
    first, second = random_tree(rng, 9, 20), random_tree(rng, 9, 12)
    twice, once = (prefilled(tiny_target, [3, 1, 9]) for _ in range(2))
    twice.verify([0], [first])
    (of_twice,), (of_once,) = (session.verify([0], [second]) for session in (twice, once))
    assert torch.equal(of_twice.logits, of_once.logits)
    rows = [0, *second.path(11)]
    for session in (twice, once):
        session.commit(0, rows)
    assert torch.equal(committed(twice, 0), committed(once, 0))


def test_a_released_slot_is_as_new(tiny_target: Target) -> None:
    tree = Tree.from_parents([9, 4, 8], [-1, 0, 0])
    session = prefilled(tiny_target, [3, 1, 9, 9])
    session.verify([0], [tree])
    session.release(0)
    assert session.length(0) == 0
    with pytest.raises(ValueError, match="no verified tree"):
        session.commit(0, [0])
    session.prefill(0, [3, 9])
    (fresh,) = prefilled(tiny_target, [3, 9]).verify([0], [tree])
    assert torch.equal(session.verify([0], [tree])[0].logits, fresh.logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_in_the_types_of_production(dtype: torch.dtype, tiny_model: Callable[..., Any]) -> None:
    rng = np.random.default_rng(6)
    prompt = rng.integers(0, VOCAB, 25).tolist()
    tree = random_tree(rng, prompt[-1], 30)
    session = prefilled(Target.from_model(tiny_model("qwen3", dtype=dtype), taps=(1,)), prompt)
    (out,) = session.verify([0], [tree])
    assert out.logits.dtype == out.features.dtype == dtype
    exact = chain_logits(tiny_model("qwen3"), prompt, tree)
    as_chains = chain_logits(tiny_model("qwen3", dtype=dtype), prompt, tree)
    # No bound of ours: a tree may be as far from float64 as the same model is on plain text.
    noise = (as_chains - exact).abs().max()
    assert (out.logits - exact).abs().max() < 2 * noise


def test_no_position_at_or_past_the_end_of_the_context(tiny_model: Callable[..., Any]) -> None:
    plain = tiny_model("qwen3", max_position_embeddings=32)
    target = Target.from_model(tiny_model("qwen3", max_position_embeddings=32))
    prompt = list(range(30))
    session = prefilled(target, prompt)
    to_the_end = Tree.from_parents([29, 1, 2, 3], [-1, 0, 1, 0])
    too_far = Tree.from_parents([29, 1, 2, 3], [-1, 0, 1, 2])
    with pytest.raises(ValueError, match=r"position 32, .* ends at 31"):
        session.verify([0], [too_far])
    assert_close(
        session.verify([0], [to_the_end])[0].logits, chain_logits(plain, prompt, to_the_end)
    )
    session.release(0)
    session.prefill(0, [0] * 32)
    with pytest.raises(ValueError, match="33 tokens, the context of the target 32"):
        prefilled(target, [0] * 33)


def test_wrong_use_is_named(tiny_target: Target) -> None:
    session = prefilled(tiny_target, [1, 2], [5], capacity=3, max_rows=4)
    chain = Tree.from_parents([2, 3, 4], [-1, 0, 1])

    def refused(message: str, call: Callable[..., Any], *arguments: Any) -> None:
        before = session.cache.buffer.clone()
        with pytest.raises(ValueError, match=message):
            call(*arguments)
        torch.testing.assert_close(session.cache.buffer, before, rtol=0, atol=0, equal_nan=True)
        assert (session.length(0), session.length(1)) == (1, 0)

    refused("slot 2 is not one of 0 to 1", session.length, 2)
    refused("slot -1 is not one of 0 to 1", session.release, -1)
    refused("slot 0 holds 1 rows", session.prefill, 0, [1])
    refused("empty prompt", session.prefill, 1, [])
    refused("5 tokens, a slot has room for 4", session.prefill, 1, [0] * 5)
    refused("token 128 is not in .* 128", session.prefill, 1, [0, 128])
    refused("token -1 is not in .* 128", session.prefill, 1, [-1, 0])
    refused("1 slots but 2 trees", session.verify, [0], [chain, chain])
    refused(r"slots \[0, 0\] are not distinct", session.verify, [0, 0], [chain, chain])
    refused("slot 5 is not", session.verify, [0, 5], [chain, chain])
    refused("token 500", session.verify, [0], [Tree.from_parents([2, 500], [-1, 0])])
    refused(
        "has 5 rows, a pass takes at most 4",
        session.verify,
        [0],
        [Tree.from_parents([2, 3, 4, 5, 6], [-1, 0, 0, 0, 0])],
    )
    refused("no verified tree", session.commit, 0, [0])
    assert session.verify([], []) == []

    session.verify([0], [chain])
    refused("do not begin with the root", session.commit, 0, [])
    refused("do not begin with the root", session.commit, 0, [1, 2])
    refused("row 2 is not a child of 0", session.commit, 0, [0, 2])
    refused("row 3 is not a child of 2", session.commit, 0, [0, 1, 2, 3])
    refused("holds 1 rows and cannot take 3 more: its capacity is 3", session.commit, 0, [0, 1, 2])
    session.commit(0, [0, 1])
    assert session.length(0) == 3
    with pytest.raises(ValueError, match="no verified tree"):
        session.commit(0, [0])


@pytest.mark.parametrize("name", ["capacity", "num_slots", "max_rows", "prefill_rows"])
def test_a_session_without_room_is_refused(name: str, tiny_target: Target) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0"):
        CachedSession(tiny_target, **{"capacity": 9, name: 0})
