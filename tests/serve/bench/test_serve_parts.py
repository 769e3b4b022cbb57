"""Parts of ``jetflow bench serve``: counters, figures, the client's files, real processes."""

from __future__ import annotations

import json
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_serve.bench.client import Measured, Requests, client_arguments, write_prompts
from jetflow_serve.bench.configurations import Configuration, ServerPlan
from jetflow_serve.bench.figures import NotMeasured, combined, figures
from jetflow_serve.bench.loads import Load
from jetflow_serve.bench.processes import ModuleProcess, ProcessFailed, log_end
from jetflow_serve.bench.scrape import grown, read_counters
from jetflow_serve.bench.servers import NoServer, Server, running_server, serving

TEXT = """\
# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="a \\"b\\", c"} 3.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="a \\"b\\", c"} 4.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="a"} 1.79e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 2.0
# TYPE jetflow:fallbacks counter
jetflow:fallbacks_total{shape="plain",reason="off",model_name="a"} 5
# TYPE jetflow:budget gauge
jetflow:budget{engine="0"} 64.0
# TYPE jetflow:tree_depth histogram
jetflow:tree_depth_bucket{le="1.0"} 1.0
jetflow:tree_depth_sum 6.0
jetflow:tree_depth_count 2.0
# TYPE python_gc_collections_total counter
python_gc_collections_total{generation="0"} 9.0
"""
READ = {
    "vllm:spec_decode_num_drafts_total": 7.0,
    "jetflow:fallbacks_total{reason=off,shape=plain}": 5.0,
    "jetflow:tree_depth_sum": 6.0,
    "jetflow:tree_depth_count": 2.0,
}


def test_counters_are_read_and_gauges_are_not() -> None:
    assert read_counters(TEXT) == READ
    assert read_counters("") == {}
    assert grown({}, READ) == dict(sorted(READ.items()))
    assert grown(READ, READ) == {}
    with pytest.raises(ValueError, match=r"tree_depth_sum fell from 6: another server\?"):
        grown(READ, {**READ, "jetflow:tree_depth_sum": 5.0})


@settings(max_examples=30)
@given(st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e6)), st.floats(0, 1e6))
def test_what_grew(before: dict[str, float], more: float) -> None:
    after = {name: value + more for name, value in before.items()}
    found = grown(before, after)
    assert found == {n: v for n in sorted(after) if (v := after[n] - before[n])}


def _server(**options: Any) -> Server:
    given = {"url": "http://h:1", "model": "m", "root": "r", "process": None, "log": None}
    return Server(**{**given, "start_seconds": None, **options})


def test_what_the_client_is_told(tmp_path: Path) -> None:
    sent = Requests(
        texts=("a", "b"), tokenizer="k", max_new_tokens=9, temperature=0.5, seed=3, raw=False
    )
    load = Load("rate", 1e-05, 7)
    asked = Configuration("tree-8", "tree", 8, asked=8)
    words = client_arguments(_server(), sent, asked, load, tmp_path / "p", tmp_path / "x.json")
    assert "--skip-chat-template" not in words and "--max-concurrency" not in words
    told = dict(pairwise(words))
    assert told["--request-rate"] == "1e-05"
    assert json.loads(told["--extra-body"]) == {"vllm_xargs": {"jetflow_budget": 8}}
    assert (told["--model"], told["--served-model-name"], told["--tokenizer"]) == ("r", "m", "k")
    assert (told["--num-prompts"], told["--custom-output-len"], told["--seed"]) == ("7", "9", "3")
    assert told["--temperature"] == "0.5" and told["--result-filename"] == "x.json"
    write_prompts(tmp_path / "p", ["a\u2028", "b"], 3)
    lines = (tmp_path / "p").read_text().split("\n")
    assert [json.loads(line)["prompt"] for line in lines[:-1]] == ["a\u2028", "b", "a\u2028"]


def _measured(counters: dict[str, float], **changed: Any) -> Measured:
    times = {
        f"{which}_{name}_ms": 5.0
        for name in ("ttft", "itl", "tpot", "e2el")
        for which in ("median", "p99")
    }
    result = {
        "completed": 2, "failed": 0, "errors": ["", ""], "duration": 1.0, "output_throughput": 9.0,
        "request_throughput": 1.0, "total_input_tokens": 3, "total_output_tokens": 4,
        "generated_texts": ["a", "\ud83d"], **times, **changed,
    }  # fmt: skip
    return Measured(result, counters)


def test_figures_of_a_load() -> None:
    drafted = {
        "vllm:spec_decode_num_drafts_total": 4.0,
        "vllm:spec_decode_num_draft_tokens_total": 28.0,
        "vllm:spec_decode_num_accepted_tokens_total": 6.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=0}": 4.0,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=10}": 2.0,
        "vllm:prefix_cache_hits_total": 1.0,
        "vllm:prefix_cache_queries_total": 4.0,
    }
    load, tree = Load("batch", 2, 2), Configuration("tree-8", "tree", 8)
    found = figures(tree, load, _measured(drafted))
    assert (found["tau"], found["rows_per_round"]) == (2.5, 8.0)
    assert found["accepted_by_depth"] == [4.0, *[0.0] * 9, 2.0]
    assert found["cached_prompt_share"] == 0.25
    other = figures(tree, load, _measured({**drafted, "vllm:spec_decode_num_drafts_total": 12.0}))
    together = combined([found, other])
    # Of all rounds together, not of the two runs' ratios.
    assert together["tau"] == pytest.approx(1 + 12 / 16)
    assert together["rows_per_round"] == pytest.approx(1 + 56 / 16)
    auto = figures(Configuration("auto", "auto", None), load, _measured({}))
    assert (auto["tau"], auto["rounds"]) == (1.0, 0.0)
    for asked, counters, changed, said in (
        (tree, {}, {}, "drafted nothing"),
        (Configuration("tree-4", "tree", 4), drafted, {}, "7.0 nodes a round for budget 4"),
        (Configuration("plain", "plain", 1), drafted, {}, "were to be decoded plainly"),
        (tree, drafted, {"completed": 1, "errors": ["", "gone"]}, "1 of 2 .* failure: gone"),
        (tree, drafted, {"completed": 1, "errors": []}, "failure: without a reason"),
    ):
        with pytest.raises(NotMeasured, match=said):
            figures(asked, load, _measured(counters, **changed))
    less = _measured(drafted)
    del less.result["p99_itl_ms"]
    with pytest.raises(NotMeasured, match="told no p99_itl_ms"):
        figures(tree, load, less)


def _plan(module: str, *arguments: str) -> ServerPlan:
    return ServerPlan("plain", module, arguments, ())


def _wrapped(folder: Path, source: str) -> Any:
    """Starts this source as a module, by ``ModuleProcess``."""
    (folder / "stand_in.py").write_text(source)

    def start(module: str, arguments: Any, log: Path) -> ModuleProcess:
        return ModuleProcess(module, arguments, log)

    return start


def test_a_server_that_dies_leaves_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    start = _wrapped(tmp_path, "import sys\nfor n in range(99): print(n)\nsys.exit('no memory')")
    log = tmp_path / "log"
    with (
        pytest.raises(ProcessFailed, match="died before it answered, exit code 1") as raised,
        serving(start, _plan("stand_in"), None, log, 60),
    ):
        pass
    assert raised.value.log_end.splitlines()[-1] in ("no memory", "98")
    assert len(raised.value.log_end.splitlines()) == 25
    assert log_end(tmp_path / "none") == ""


STUBBORN = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_process_is_stopped_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    log = tmp_path / "log"
    process = _wrapped(tmp_path, STUBBORN)("stand_in", (), log)
    while not log.read_text().endswith("\n"):
        assert process.poll() is None
        time.sleep(0.01)
    process.stop()
    process.stop()
    assert process.poll() == -signal.SIGTERM
    child = int(log.read_text())
    while _runs(child):
        time.sleep(0.01)


def test_a_server_that_never_answers(tmp_path: Path, fakes: Any) -> None:
    fakes.silent = True
    with (
        pytest.raises(ProcessFailed, match=r"did not answer within 0\.5 seconds"),
        serving(fakes, _plan("silent"), None, tmp_path / "log", 0.5),
    ):
        pass


def _runs(number: int) -> bool:
    """Whether a process is there and no dead one that nobody has asked after."""
    try:
        after_name = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2]
    except FileNotFoundError:
        return False
    return after_name.split()[0] not in "ZX"


def test_a_server_of_something_else(tmp_path: Path, fakes: Any) -> None:
    process = fakes("server", ["--port", "0"], tmp_path / "log")
    url = f"http://127.0.0.1:{process.server.server_address[1]}"
    assert running_server(url).root == "root-of-some-model"
    with pytest.raises(NoServer, match="no server answers at"):
        running_server("http://127.0.0.1:1")
    process.server.models = "[]"
    with pytest.raises(NoServer, match="names no model"):
        running_server(url)
    process.stop()
