"""Loops, prompt lookup, provenance and whole files."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jetflow_core.reports.files import check_output, write_json, write_report
from jetflow_core.reports.loops import (
    FEWEST_REPEATED,
    LONGEST_PERIOD,
    before_loop,
    loop_share,
    looping_tail,
    tau_without_loops,
)
from jetflow_core.reports.prompt_lookup import prompt_lookup_rounds, prompt_lookup_tau
from jetflow_core.reports.provenance import provenance

_TEXT = st.lists(st.integers(0, 3), max_size=70)


def _slow_tail(tokens: list[int]) -> int:
    """The definition, spelled out over every start and period."""
    for start in range(len(tokens) - FEWEST_REPEATED + 1):
        for period in range(1, LONGEST_PERIOD + 1):
            if start >= period and all(
                tokens[i] == tokens[i - period] for i in range(start, len(tokens))
            ):
                return start
    return len(tokens)


@given(_TEXT, st.lists(st.integers(0, 3), min_size=1, max_size=5), st.integers(0, 30))
def test_the_tail_is_the_earliest_one_of_the_definition(
    text: list[int], cycle: list[int], times: int
) -> None:
    looping = text + cycle * times
    assert looping_tail(looping) == _slow_tail(looping)


def test_a_loop_begins_with_its_second_period() -> None:
    assert looping_tail([9, 8, *[1, 2, 3] * 10]) == 5
    assert looping_tail([5] * (FEWEST_REPEATED + 1)) == 1
    assert looping_tail([5] * FEWEST_REPEATED) == FEWEST_REPEATED
    long_period = list(range(LONGEST_PERIOD + 1)) * 3
    assert looping_tail(long_period) == len(long_period)
    assert looping_tail([]) == 0


def test_loop_share_counts_tokens_of_all_texts() -> None:
    assert loop_share([[5] * 41, list(range(39))]) == 40 / 80
    assert loop_share([]) == 0.0


def test_tau_without_loops_keeps_whole_rounds_that_begin_before() -> None:
    assert before_loop([2, 3, 4], 5) == (5, 2)
    assert before_loop([2, 3, 4], 6) == (9, 3)
    assert before_loop([2, 3, 4], 99) == (9, 3)
    looping = [*range(4), *[7] * 40]
    assert looping_tail(looping) == 5
    assert tau_without_loops([(looping, [1, 1, 1, 1, 1, 10, 10, 10, 9])]) == 1.0
    assert tau_without_loops([]) == 0.0


def _slow_rounds(prompt: list[int], tokens: list[int], ngram: int, most: int) -> int:
    done = rounds = 0
    while done < len(tokens):
        known = prompt + tokens[:done]
        draft: list[int] = []
        if len(known) >= ngram:
            for start in range(len(known) - ngram):
                if known[start : start + ngram] == known[-ngram:]:
                    draft = known[start + ngram : start + ngram + most]
                    break
        kept = 0
        while kept < len(draft) and tokens[done + kept : done + kept + 1] == [draft[kept]]:
            kept += 1
        done, rounds = done + kept + 1, rounds + 1
    return rounds


@given(_TEXT, _TEXT, st.integers(1, 4), st.integers(1, 12))
def test_prompt_lookup_replays_as_defined(
    prompt: list[int], tokens: list[int], ngram: int, most: int
) -> None:
    found = prompt_lookup_rounds(prompt, tokens, ngram=ngram, max_draft=most)
    assert found == _slow_rounds(prompt, tokens, ngram, most)


def test_prompt_lookup_copies_from_the_prompt() -> None:
    prompt = list(range(20))
    # The first three tokens find the prompt's; ten more are copied, and one is the target's.
    assert prompt_lookup_tau([*prompt, 99, 0, 1, 2], prompt[3:14]) == 11.0
    assert prompt_lookup_tau(prompt, [50, 60, 70, 80]) == 1.0
    assert prompt_lookup_tau(prompt, []) == 0.0
    with pytest.raises(ValueError, match="ngram 0 is out of range"):
        prompt_lookup_tau(prompt, [1], ngram=0)


def test_provenance_is_json_and_names_versions() -> None:
    found = json.loads(json.dumps(provenance()))
    assert found["packages"]["jetflow-core"] == "0.1.0"
    assert "torch" in found["packages"]
    assert found["date"].endswith("+00:00")
    assert found["cpus"] >= 1


def test_provenance_leaves_out_where_files_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    absolute = str(Path("a.json").absolute())
    given = [absolute, "--out", absolute, f"--head={absolute}", "sets/b.jsonl", "--x=1"]
    monkeypatch.setattr(sys, "argv", given)
    expected = ["a.json", "--out", "a.json", "--head=a.json", "sets/b.jsonl", "--x=1"]
    assert provenance()["arguments"] == expected


def test_reports_import_nothing_heavy() -> None:
    code = (
        "import sys; from jetflow_core.reports import files, loops, prompt_lookup, provenance; "
        "provenance.provenance(); "
        "sys.exit(bool({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = write_json(tmp_path / "a.json", {"tau": 2.5})
    assert json.loads(file.read_text()) == {"tau": 2.5}
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(file, {"tau": float("nan")})
    assert json.loads(file.read_text()) == {"tau": 2.5}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        check_output(tmp_path / "none" / "a.json")
    with pytest.raises(ValueError, match="it is a folder"):
        check_output(tmp_path)


def test_a_report_names_files_without_their_folders(tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.touch()
    report = {"settings": {"prompts": (str(data),), "text": "/no such file", "slash": "/"}}
    write_report(tmp_path / "report.json", report)
    found = json.loads((tmp_path / "report.json").read_text())
    assert found == {
        "settings": {"prompts": ["prompts.jsonl"], "text": "/no such file", "slash": "/"}
    }
