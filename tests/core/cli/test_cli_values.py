"""Values of options: whole numbers, devices, lists and texts, refused before the models load."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.bench import app
from jetflow_core.bench.prompts import load_sets
from jetflow_core.cli import run_app
from jetflow_core.commands.numbers import OptionError, parse_whole
from jetflow_core.engine import MAX_BUDGET
from jetflow_core.limits import MAX_BUDGET as MAX_BUDGET_OF_OPTIONS
from jetflow_tree import bench

Call = Callable[..., tuple[int, str, str]]
LONG = "9" * 5000

GENERATE = {
    "--max-new-tokens 4.5": "no whole number",
    "--min-new-tokens 1.0": "no whole number",
    "--seed 1.5": "seed '1.5' is no whole number",
    "--top-k 1.5": "no whole number",
    "--top-k 1_0": "no whole number",
    "--logprobs 0x1": "no whole number",
    "--stop-token-id 2.5": "no whole number",
    "--depth 1.5": "no whole number",
    "--threads 1.5": "no whole number",
    "--threads 2147483648": "threads 2147483648 is out of range: 1 to 1024",
    f"--max-new-tokens {LONG}": "out of range",
    f"--seed {LONG}": "out of range",
    f"--budget {LONG}": "is out of range: 1 to 256",
    "--budget +4": "budget '+4' is no whole number",
    "--budget \u0663": "is no whole number",
    f"--logit-bias {LONG}=1": "not of the form",
    "--logit-bias 1.5=2": "not of the form",
    "--logit-bias 5=1_0": "not of the form",
    "--temperature 1_0": "temperature '1_0' is no number",
    "--top-p 0x1": "top-p '0x1' is no number",
    "--min-p \u0663": "is no number",
    "--builder chain": "budget auto needs best-first trees: add --budget N",
    "--top-p 2": "top_p must be",
    "--device meta": "device 'meta' cannot be used here: cpu, cuda or cuda:N",
    "--device hpu": "cpu, cuda or cuda:N",
    "--device privateuseone": "cpu, cuda or cuda:N",
    "--device mkldnn": "cpu, cuda or cuda:N",
    "--device mps": "cpu, cuda or cuda:N",
    "--device xla": "cpu, cuda or cuda:N",
    "--device cpu:7": "cpu, cuda or cuda:N",
    "--device cuda:9999": "cannot be used here",
}
OTHERS = {
    "tree hi --rounds 1.5": "no whole number",
    "tree hi --rounds 99999999999999999999": "is out of range: 1 to 10000",
    "tree": "no prompts: give one text",
    "tree a b": "2 prompts: give one text",
    "generate hi --logit-bias 5=1 --logit-bias 5=-1": "logit-bias names token 5 twice",
    "bench tree --repeats 1.5": "no whole number",
    "bench tree --seed -1": "seed -1 is out of range: at least 0",
    "bench tree --width 2000": "width 2000 is out of range: 1 to 1000",
    "bench tree --width 1000000000": "width 1000000000 is out of range",
    "bench tree --depth 1000000000": "depth 1000000000 is out of range",
    f"bench tree --budgets {LONG}": "is out of range: whole numbers, 1 to 65536",
    f"bench decode --budgets {LONG}": "is out of range: whole numbers, 1 to 256",
    "bench decode --slots 1000000000": "slots 1000000000 is out of range: 1 to 4096",
    "bench decode --threads 2147483648": "threads 2147483648 is out of range",
    "bench decode --limit 1.5": "no whole number",
    "bench decode --temperature nan": "temperature must be",
    "bench decode --temperature -1": "temperature must be",
    "bench decode --temperature inf": "temperature must be",
    "bench decode --device meta": "cpu, cuda or cuda:N",
    "bench lossless --processes 1.5": "no whole number",
    "bench lossless --drafters head oracle": "joined with commas",
    "bench lossless --drafters head,star": "choose from head,wrong,random,oracle",
}


def _refused(result: tuple[int, str, str], expected: str) -> None:
    code, out, err = result
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert expected in err
    assert len(err) < 600


@pytest.mark.parametrize("options", GENERATE)
def test_generate_refuses(options: str, jetflow: Call) -> None:
    _refused(jetflow("generate", "hi", *options.split()), GENERATE[options])


@pytest.mark.parametrize("line", OTHERS)
def test_others_refuse(line: str, jetflow: Call) -> None:
    _refused(jetflow(*line.split()), OTHERS[line])


def test_options_know_the_engines_budget() -> None:
    assert MAX_BUDGET == MAX_BUDGET_OF_OPTIONS


def test_whole_numbers_are_read_as_they_are() -> None:
    assert [parse_whole(text, "x") for text in ("0", "-7", "007", str(2**64 - 1))] == [
        0, -7, 7, 2**64 - 1,
    ]  # fmt: skip
    for text in ("", "-", "--5", "1e3", "\u00b2", " 1", str(2**64)):
        with pytest.raises(OptionError, match="x "):
            parse_whole(text, "x")


def test_options_are_checked_before_torch_is_imported() -> None:
    lines = [
        ["generate", "hi", "--top-p", "2"],
        ["generate", "hi", "--builder", "chain"],
        ["generate", "hi", "--device", "meta"],
        ["generate", ""],
        ["tree", "hi", "--rounds", "0"],
        ["bench", "decode", "--out", "x.png", "--plot", "x.png"],
        ["train", "--target", "x", "--data", "x", "--out", "x"],
    ]
    code = (
        "import sys; from jetflow_core.cli import run; "
        f"codes = [run(line) for line in {lines!r}]; "
        "sys.exit(codes != [2] * len(codes) or bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(lines)


TEXTS = {
    "bytes that are no text": (["generate", "\udcff\udcfe"], "argument 2 is no text"),
    "an option's bytes": (["generate", "hi", "--stop", "\udcff"], "argument 4 is no text"),
    "empty": (["generate", ""], "the prompt is empty"),
    "empty, the second": (["generate", "a", ""], "prompt 2 is empty"),
    "empty tree": (["tree", ""], "the prompt is empty"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_prompt_is_text(name: str, jetflow: Call) -> None:
    arguments, expected = TEXTS[name]
    _refused(jetflow(*arguments), expected)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_stdin_is_text(errors: str, jetflow: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(b"\xff\xfe"), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", stdin)
    _refused(jetflow("generate", "-"), "what stdin holds is no text")


LINES = {
    "half a character": ('{"prompt": "\\ud800"}', "half a character"),
    "nested": ("[" * 100_000, "nested too deeply"),
    "long id": ('{"prompt": "a", "id": ' + LONG + "}", "a number is too long"),
    "no text": ('{"prompt": 3}', 'needs an object with a text under "prompt"'),
    "no JSON": ("{", "not JSON"),
}


@pytest.mark.parametrize("name", LINES)
def test_a_bad_line_of_a_prompt_file_is_named(name: str, tmp_path: Path, jetflow: Call) -> None:
    line, expected = LINES[name]
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a"}\n' + line + "\n")
    result = jetflow("bench", "decode", "--device", "cpu", "--prompts", file)
    _refused(result, expected)
    assert "p.jsonl:2" in result[2]


def test_a_prompt_file_that_is_no_text_is_named(tmp_path: Path, jetflow: Call) -> None:
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"\xff\xfe")
    _refused(jetflow("bench", "decode", "--device", "cpu", "--prompts", file), "it is not UTF-8")


def test_no_set_takes_the_name_of_all_sets(tmp_path: Path) -> None:
    files = [tmp_path / "all.jsonl", tmp_path / "other.jsonl"]
    for file in files:
        file.write_text(json.dumps({"prompt": "a"}))
    assert [found.name for found in load_sets(files[:1])] == ["all"]
    with pytest.raises(ValueError, match="cannot be called 'all'"):
        load_sets(files)


def test_a_decode_benchmark_is_refused_before_the_models_load(
    tiny_folder: Path, make_head: Callable[..., Path], tmp_path: Path, jetflow: Call,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def load(*_: object, **__: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr("jetflow_core.bench.decode.load", load)
    models = ("bench", "decode", "--device", "cpu", "--target", tiny_folder)
    _refused(jetflow(*models), "chain and trees need --head")
    deep = jetflow(*models, "--head", make_head(), "--depth", 100)
    _refused(deep, "depth 100 is out of range: the head head goes to 5")


def test_a_prompt_too_long_shows_before_the_first_is_decoded(
    tiny_folder: Path, tmp_path: Path, jetflow: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_sets(*_: object) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr("jetflow_core.bench.decode.run_sets", run_sets)
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in ("a", "b" * 300)))
    result = jetflow(
        "bench", "decode", "--device", "cpu", "--target", tiny_folder, "--kinds", "plain",
        "--prompts", file,
    )  # fmt: skip
    _refused(result, "prompt 'line 2' of p has 300 tokens")


def test_benchmarks_without_the_command_say_one_line_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_app(app.build(), ["tree", "--width", "0"], name="bench") == 2
    assert capsys.readouterr().err == "bench: width 0 is out of range: 1 to 1000\n"


def test_the_help_says_what_is_measured_and_which_budgets(jetflow: Call) -> None:
    assert "and kernels" not in jetflow("bench", "--help")[1]
    words = " ".join(jetflow("generate", "--help")[1].split())
    for text in ("1 to 256", "tau = new tokens / rounds", "are green"):
        assert text in words


def test_no_header_is_cut_at_80_columns(jetflow: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    real = bench.run

    def slow(**options: Any) -> dict[str, Any]:
        """As on a machine that is busy: no time may push another column out."""
        report: Any = real(**options)
        for row in report["rows"]:
            row.update(median_us=123456.7, min_us=98765.4, ratio=10.25)
        return report

    monkeypatch.setattr(bench, "run", slow)
    code, out, err = jetflow("bench", "tree", "--repeats", "1", "--budgets", "256")
    assert (code, err) == (0, "")
    assert "\u2026" not in out
    assert "median" in out
    assert "123457" in out
