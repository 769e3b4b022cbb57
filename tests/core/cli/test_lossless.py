"""The check that tree decoding wrote what plain decoding writes, and what a difference means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jetflow_core.commands.summary import lossless_line
from jetflow_core.engine import Engine, TreeOptions
from jetflow_core.lossless import Difference, explain_difference, first_difference
from jetflow_core.picker import TokenPicker
from jetflow_core.sampling import SamplingParams
from jetflow_core.session import CachedSession
from jetflow_core.target import Target
from jetflow_tree import Tree

_TOKENS = st.lists(st.integers(0, 3), max_size=8)
_PROMPT = (40, 70, 71)
_PLAIN = TreeOptions(budget=1)


@given(_TOKENS, _TOKENS)
def test_the_first_difference_is_where_the_common_beginning_ends(
    plain: list[int], tree: list[int]
) -> None:
    index = first_difference(plain, tree)
    if index is None:
        assert plain == tree
    else:
        assert plain[:index] == tree[:index]
        assert plain[index : index + 1] != tree[index : index + 1]


@pytest.fixture(scope="module")
def engine(tiny_folder: Path) -> Engine:
    return Engine(Target.load(tiny_folder, dtype=torch.float32), None)


def _changed(tokens: tuple[int, ...], index: int) -> tuple[int, ...]:
    return (*tokens[:index], (tokens[index] + 1) % 128, *tokens[index + 1 :])


def _row(engine: Engine, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits after ``tokens``, from a pass of its own."""
    session = CachedSession(engine.target, capacity=len(tokens))
    session.prefill(0, tokens)
    return session.verify([0], [Tree.root_only(tokens[-1])])[0].logits[0]


def test_equal_answers_have_no_difference(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=8)
    tokens = engine.generate(_PROMPT, params, _PLAIN).tokens
    assert explain_difference(engine, _PROMPT, params, tokens, tokens) is None


def test_the_gap_is_that_of_the_plain_runs_logits(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=12)
    plain = engine.generate(_PROMPT, params, _PLAIN).tokens
    found = explain_difference(engine, _PROMPT, params, plain, _changed(plain, 5))
    assert found is not None
    best = _row(engine, (*_PROMPT, *plain[:5])).topk(2).values
    assert found.index == 5
    assert (found.plain, found.tree) == (plain[5], (plain[5] + 1) % 128)
    assert found.gap == pytest.approx(float(best[0] - best[1]), rel=1e-3, abs=1e-5)
    assert found.margin == pytest.approx(found.gap, rel=1e-3, abs=1e-5)
    assert found.rounding == 0.0
    assert not found.is_near_tie


def test_an_answer_that_stops_early_differs_at_its_end(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=6)
    plain = engine.generate(_PROMPT, params, _PLAIN).tokens
    found = explain_difference(engine, _PROMPT, params, plain, plain[:4])
    assert found is not None
    assert (found.index, found.plain, found.tree) == (4, plain[4], None)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_with_sampling_the_margin_is_that_of_the_noisy_law(engine: Engine, seed: int) -> None:
    """Taking a little less than the margin from the pick changes nothing, a little more does."""
    params = SamplingParams(max_new_tokens=6, temperature=0.8, seed=seed)
    plain = engine.generate(_PROMPT, params, _PLAIN).tokens
    index = 3
    found = explain_difference(engine, _PROMPT, params, plain, _changed(plain, index))
    assert found is not None
    row = _row(engine, (*_PROMPT, *plain[:index]))
    best = row.topk(2).values
    assert found.gap == pytest.approx(float(best[0] - best[1]), rel=1e-3, abs=1e-5)
    for part in (0.9, 1.1):
        # A logit counts divided by the temperature.
        bias = {plain[index]: -part * found.margin * params.temperature}
        picker = TokenPicker(replace(params, logit_bias=bias), _PROMPT, (0,), 128)
        stays = picker.pick(row, list(plain[:index])).token == plain[index]
        assert stays == (part < 1)


def test_a_bias_counts_in_the_margin_not_in_the_gap(engine: Engine) -> None:
    best = _row(engine, _PROMPT).topk(2)
    lead = float(best.values[0] - best.values[1])
    params = SamplingParams(max_new_tokens=2, logit_bias={int(best.indices[1]): lead / 2})
    plain = engine.generate(_PROMPT, params, _PLAIN).tokens
    assert plain[0] == int(best.indices[0])
    found = explain_difference(engine, _PROMPT, params, plain, _changed(plain, 0))
    assert found is not None
    assert found.gap == pytest.approx(lead, rel=1e-3, abs=1e-5)
    assert found.margin == pytest.approx(lead / 2, rel=1e-2, abs=1e-4)


def test_only_16_bit_types_have_near_ties() -> None:
    def difference(margin: float, rounding: float) -> Difference:
        return Difference(3, 1, 2, gap=margin, margin=margin, rounding=rounding)

    assert difference(0.1, 0.5).is_near_tie
    assert not difference(0.6, 0.5).is_near_tie
    assert not difference(1e-7, 0.0).is_near_tie


def test_in_16_bits_rounding_grows_with_the_logits(tiny_folder: Path) -> None:
    engine = Engine(Target.load(tiny_folder, dtype=torch.bfloat16), None)
    params = SamplingParams(max_new_tokens=4)
    plain = engine.generate(_PROMPT, params, _PLAIN).tokens
    found = explain_difference(engine, _PROMPT, params, plain, _changed(plain, 1))
    assert found is not None
    row = _row(engine, (*_PROMPT, *plain[:1])).float()
    assert found.rounding == pytest.approx(4 * 2**-7 * float(row.max().abs()), rel=0.05)


Call = Callable[..., tuple[int, str, str]]


def _generate(jetflow: Call, folder: Path, head: Path, *options: object) -> tuple[int, str, str]:
    return jetflow(
        "generate", "Count to ten.", "--target", folder, "--head", head, "--device", "cpu",
        "--budget", 8, "--max-new-tokens", 24, "--check-lossless", *options,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [(), ("--temperature", 0.9, "--seed", 3), ("--repetition-penalty", 1.2),
     ("--temperature", 1.1, "--top-p", 0.9, "--min-p", 0.01, "--seed", 4)],
)  # fmt: skip
def test_the_command_finds_identity(
    jetflow: Call, tiny_folder: Path, make_head: Callable[..., Path], options: tuple[Any, ...]
) -> None:
    code, out, err = _generate(jetflow, tiny_folder, make_head(), "--dtype", "float32", *options)
    assert (code, err) == (0, "")
    assert "lossless check: identical, 24 tokens (float32)" in out


def test_the_command_finds_a_fault(
    jetflow: Call,
    tiny_folder: Path,
    make_head: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A session that shows a tree's rows the wrong logits once it drafts."""
    verify = CachedSession.verify

    def broken(self: CachedSession, slots: Any, trees: Any) -> Any:
        outputs = verify(self, slots, trees)
        for tree, output in zip(trees, outputs, strict=True):
            if tree.num_nodes > 1:
                output.logits[0] = output.logits[0].roll(1)
        return outputs

    monkeypatch.setattr(CachedSession, "verify", broken)
    code, out, err = _generate(jetflow, tiny_folder, make_head(), "--dtype", "float32")
    assert (code, err) == (1, "")
    assert "token 0 differs (float32)" in out
    assert "NOT explained by rounding" in out


def test_a_near_tie_is_told_and_is_no_failure() -> None:
    difference = Difference(7, 11, 12, gap=0.25, margin=0.25, rounding=0.5)
    line = lossless_line(difference, tokens=9, dtype="bfloat16")
    assert "token 7 differs (bfloat16): plain 11, tree 12" in line
    assert "0.25 apart" in line
    assert "near-tie" in line
