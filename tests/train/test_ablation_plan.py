"""Plans of studies: what is wrong in one is refused by name, before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.cli import run_app
from jetflow_train.ablation.options import option_kinds, variant_options
from jetflow_train.ablation.plan import BUILDERS, parse_plan, read_plan, shipped_plans
from jetflow_train.ablation.study import data_folders, prepare
from jetflow_train.cli import build
from jetflow_train.prompts import read_prompts
from jetflow_train.shards import write_manifest

GOOD = """
seeds = [0, 1]
[train]
data = ["words"]
max-steps = 2
layers = 1
[eval]
prompts = ["p.jsonl"]
[[variants]]
name = "base"
[[variants]]
name = "marginal"
changes = { path-rank = 0 }
against = "base"
[[variants]]
name = "children"
of = "base"
builder = "all-children"
against = "base"
[[variants]]
name = "reverse"
start = "base"
changes = { loss = "reverse_kl", max-steps = 3 }
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "w1"}))
    for name in ("one", "two", "three"):
        write_manifest(tmp_path / name, {"target": {}, "shards": []})
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.fixture
def ablate(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    def loaded(*_: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr("jetflow_train.ablation.job.run_study", loaded)

    def go(text: str, *words: str) -> tuple[int, str]:
        (home / "plan.toml").write_text(text)
        capsys.readouterr()
        code = run_app(build(), ["ablate", "plan.toml", "--out", "s", *words], name="j")
        return code, capsys.readouterr().err

    return go


CASES: dict[tuple[str, str], str] = {
    ("seeds = [0, 1]", "seed = 0"): "plan.toml: unknown key 'seed'; did you mean 'seeds'?",
    ("[0, 1]", "[0, 0]"): "seed 0 comes twice",
    ("[0, 1]", "[-1]"): "seed -1 is no whole number from 0 on",
    ("[0, 1]", "[]"): "no seeds",
    ("seeds = [0, 1]", "seeds = "): "plan.toml is no TOML",
    ("layers = 1", "layer = 1"): "[train]: unknown option 'layer'; did you mean 'layers'?",
    ("layers = 1", "layers = 0"): "variant 'base': layers 0 is out of range: 1 to 256",
    ("layers = 1", "layers = 1.0"): "[train]: layers must be a whole number, got 1.0",
    ("layers = 1", "causal = 1"): "[train]: causal must be true or false, got 1",
    ("layers = 1", "taps = 1"): "[train]: taps must be a list, got 1",
    ("layers = 1", "seed = 1"): "seed is no option of a plan: give the study's seeds",
    ("layers = 1", 'out = "x"'): "out is no option of a plan",
    ("layers = 1", 'target = "x"'): "target is no option of a plan: give --target",
    ("layers = 1", "path_rank = 2\npath-rank = 3"): "[train]: path-rank comes twice",
    ("layers = 1", "rows = 3"): "variant 'base': rows 3 must be a multiple",
    ("max-steps = 2\n", ""): "variant 'base': the length of the run: give",
    ('name = "marginal"', 'name = "base"'): "two variants are called 'base'",
    ('name = "marginal"', 'name = "Not/This"'): "variant 'Not/This': a name is of",
    ('name = "marginal"', "name = 3"): "variant 2 needs a name",
    ("path-rank = 0", "path-rank = 128"): "variant 'marginal' is the same as 'base'",
    ("path-rank = 0", "layers = 1"): "variant 'marginal' is the same as 'base'",
    ("path-rank = 0", "path-rnk = 0"): "unknown option 'path-rnk'; did you mean 'path-rank'?",
    ("path-rank = 0", 'loss = "reverse_kl"'): "--loss reverse_kl has hardly any gradient",
    ('against = "base"', 'against = "bse"'): "variant 'marginal': against 'bse', which is no var",
    ('against = "base"', 'against = "marginal"'): "variant 'marginal': against itself",
    ('against = "base"', 'beside = "base"'): "variant 'marginal': unknown key 'beside'",
    ('of = "base"', 'of = "bas"'): "variant 'children': of 'bas', which is no variant",
    ('of = "base"', 'of = "base"\nchanges = { layers = 2 }'): "can change nothing",
    ('"all-children"', '"best"'): "builder 'best' is none of exact, all-children, chain",
    ('"all-children"', '"second-pass"'): (
        "variant 'children': builder second-pass needs a head that is trained with prefix-fill; "
        "that of 'base' is not"
    ),
    ("path-rank = 0", "prefix-fill = 1.5"): "variant 'marginal': prefix-fill 1.5 is out of range",
    ("path-rank = 0", "prefix-fill = 0.5, causal = false"): "--prefix-fill 0.5 needs a causal head",
    ('"all-children"', '"exact"'): "variant 'children' is the same as 'base'",
    ('start = "base"', 'start = "later"'): "start 'later', which is no variant with a training",
    ("max-steps = 3", "layers = 2"): "layers is fixed by the head of 'base' that it starts with",
    ('prompts = ["p.jsonl"]', ""): "[eval]: no prompts; give them here or with --prompts",
    ('["p.jsonl"]', '["none.jsonl"]'): "cannot read the prompts of none.jsonl",
    ('["p.jsonl"]', '["p.jsonl"]\nbudgets = [0]'): "[eval]: budget 0 is out of range",
    ('["p.jsonl"]', '["p.jsonl"]\nbudgets = [4, 4]'): "[eval]: budget 4 comes twice",
    ('["p.jsonl"]', '["p.jsonl"]\nbudgets = [4.0]'): "[eval]: budgets must be whole numbers",
    ('["p.jsonl"]', '["p.jsonl"]\nlimit = true'): "[eval]: limit must be a whole number, got True",
    ('["p.jsonl"]', '["p.jsonl"]\ntemperatures = [-1]'): "[eval]: temperature -1 is out of range",
    ('["p.jsonl"]', '["p.jsonl"]\nheads = []'): "[eval]: unknown key 'heads'",
    ('["words"]', '["no/words"]'): "no/words holds no manifest.json",
    ('["words"]', '["empty"]'): "empty holds no manifest.json",
    ('["words"]', '["nowhere"]'): "no variant uses data called 'words'; called are nowhere",
}


@pytest.mark.parametrize("change", CASES)
def test_a_bad_plan_is_refused_by_name(change: tuple[str, str], home: Path) -> None:
    before, after = change
    assert before in GOOD
    given = {} if "empty" in after or "no/" in after else {"words": Path("one")}
    with pytest.raises(ValueError, match=re.escape(CASES[change])) as refused:
        plan = parse_plan(GOOD.replace(before, after, 1), "plan.toml")
        read_prompts(plan.evaluation.prompts)
        prepare(plan, given)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("change", list(CASES)[::9])
def test_the_command_says_it_in_one_line(
    change: tuple[str, str], ablate: Callable[..., tuple[int, str]], home: Path
) -> None:
    code, err = ablate(GOOD.replace(*change, 1), "--data", "words=one")
    assert (code, len(err.splitlines())) == (2, 1), err
    assert CASES[change] in err
    assert not (home / "s").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--data words", "data 'words' is not of the form NAME=DIR"),
        ("--data words=one words=two", "data 'words' is given twice"),
        ("--data words=none", "none holds no manifest.json"),
        ("", "nothing can run: no data called words"),
        ("--data words=one --max-seconds nan", "max-seconds nan is out of range"),
        ("--data words=one --max-seconds -1", "max-seconds -1.0 is out of range"),
        ("--data words=one --workers 0", "workers 0 is out of range"),
        ("--data words=one --prompts none.jsonl", "cannot read the prompts of none.jsonl"),
    ],
)
def test_bad_words_are_one_line_and_exit_code_2(
    words: str, why: str, ablate: Callable[..., tuple[int, str]]
) -> None:
    code, err = ablate(GOOD, *words.split())
    assert (code, len(err.splitlines())) == (2, 1), err
    assert why in err


def test_a_plan_that_is_nowhere_names_those_of_the_package(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_app(build(), ["ablate", "papr", "--out", "s"], name="j") == 2
    assert "cannot read the plan papr: No such file or directory; plans of the package: paper" in (
        capsys.readouterr().err
    )
    assert not (home / "s").exists()


def test_runs_go_seed_by_seed_through_all_trainings(home: Path) -> None:
    study = prepare(parse_plan(GOOD, "plan"), {"words": Path("one")})
    assert [run.name for run in study.runs()] == [
        "base-s0", "marginal-s0", "reverse-s0", "base-s1", "marginal-s1", "reverse-s1",
    ]  # fmt: skip
    assert [each.name for each in study.sharing("base")] == ["base", "children"]
    assert study.settings["reverse"].max_steps == 3
    # The head of another variant brings its own options.
    assert (study.settings["base"].layers, study.settings["reverse"].layers) == (1, None)
    assert study.settings["base"].data == (Path("one"),)


def test_one_length_takes_the_place_of_the_other() -> None:
    plan = parse_plan(GOOD.replace("max-steps = 3", "max-minutes = 1.5"), "plan")
    options = variant_options(plan, plan.variant("reverse"))
    assert options["max-minutes"] == 1.5
    assert "max-steps" not in options


def test_the_shipped_plan_names_only_real_options(home: Path) -> None:
    assert shipped_plans() == ("paper", "path-term", "second-pass")
    plan = read_plan("paper", [Path("p.jsonl")])
    given = {name: home / folder for name, folder in
             {"greedy": "one", "sampled": "two", "corpus": "three"}.items()}  # fmt: skip
    study = prepare(plan, given)
    assert not study.not_run
    named = set(plan.train) | {name for each in plan.variants for name in each.changes}
    assert named <= set(option_kinds())
    shown = [some for some in study.settings.values()]
    assert {some.gamma for some in shown} == {0.0, 4.0}
    assert {some.causal for some in shown} == {None, False}
    assert {some.loss for some in shown} == {"forward_kl", "reverse_kl", "cross_entropy"}
    assert {some.layers for some in shown} == {None, 1, 2, 5}
    assert {some.block_size for some in shown} == {None, 8, 12}
    assert {some.path_rank for some in shown} == {None, 0}
    assert {some.prefix_fill for some in shown} == {0.0, 0.5}
    assert {each.builder for each in plan.variants} == set(BUILDERS)
    assert plan.evaluation.budgets == (16, 32, 64, 128, 256)


def test_what_the_path_term_is_made_of_shares_its_base_with_the_long_plan(home: Path) -> None:
    plan, paper = (read_plan(name, [Path("p.jsonl")]) for name in ("path-term", "paper"))
    study = prepare(plan, {"greedy": home / "one", "sampled": home / "two"})
    assert not study.not_run
    assert plan.train == paper.train and plan.evaluation == paper.evaluation
    for name in ("base", "twice-as-long"):
        assert plan.variant(name) == paper.variant(name)
    assert {some.path_rank for some in study.settings.values()} == {None, 32, 512}
    assert {some.candidate_pool for some in study.settings.values()} == {None, 0}


def test_the_path_term_and_the_second_pass_learn_from_equally_many_steps(home: Path) -> None:
    plan = read_plan("second-pass", [Path("p.jsonl")])
    study = prepare(plan, {"answers": home / "one"})
    steps = {some.max_steps for some in study.settings.values()}
    assert len(steps) == 1 and None not in steps
    twice = [each for each in plan.variants if each.builder == "second-pass"]
    assert [study.settings[each.trained_as].path_rank for each in twice] == [0, None]
    for each in twice:
        assert study.settings[each.trained_as].prefix_fill > 0
        assert each.against == "base" and plan.variant("base").builder == "exact"
    # What the long plan holds of it is the same but for the length.
    paper = {each.name: each for each in read_plan("paper", [Path("p.jsonl")]).variants}
    assert all(paper[each.name].changes == each.changes for each in plan.variants)
    # A head that goes on with a filled one may be asked as well.
    text = GOOD.replace('"all-children"', '"second-pass"').replace('of = "base"', 'of = "reverse"')
    filled = text.replace('name = "base"', 'name = "base"\nchanges = { prefix-fill = 0.5 }', 1)
    assert prepare(parse_plan(filled, "plan"), {"words": home / "one"}).sharing("reverse")


def test_reverse_kl_and_its_baseline_train_equally_long(home: Path) -> None:
    plan = read_plan("paper", [Path("p.jsonl")])
    reverse = next(v for v in plan.variants if v.changes.get("loss") == "reverse_kl")
    assert reverse.against is not None
    baseline = plan.variant(reverse.against)
    assert reverse.start == baseline.start == "base"
    options: list[dict[str, Any]] = [variant_options(plan, each) for each in (reverse, baseline)]
    assert options[0] == {**options[1], "loss": "reverse_kl"}


def test_what_lacks_data_is_told_and_not_dropped(home: Path) -> None:
    plan = read_plan("paper", [Path("p.jsonl")])
    study = prepare(plan, data_folders(["greedy=one", "sampled=two"]))
    assert study.not_run == {"corpus-answers": "no data called corpus"}
    # A head that another one starts with, or that another one is measured with, is missed too.
    text = GOOD.replace('["words"]', '["one"]').replace(
        'name = "base"', 'name = "base"\nchanges = { data = ["late"] }', 1
    )
    assert prepare(parse_plan(text, "plan"), {}).not_run == {
        "base": "no data called late",
        "reverse": "it starts with base: no data called late",
        "children": "base: no data called late",
    }
