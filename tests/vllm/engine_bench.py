"""``jetflow bench serve`` with real servers and vLLM's own client: plain, chain and tree."""

from __future__ import annotations

import json
from pathlib import Path

from forking import ForkedProcess
from jetflow_serve.bench.client import check_client
from jetflow_serve.bench.preparing import Places, prepare
from jetflow_serve.bench.run import run_serve
from jetflow_serve.bench.settings import ServeBenchSettings

OPTIONS = (
    "--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "4",
    "--max-num-batched-tokens", "2048", "--block-size", "32", "--kv-cache-memory-bytes", "16M",
    "--seed", "0",
)  # fmt: skip


def test_plain_chain_and_tree(target: Path, head: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    texts = ["a draft tree", "the walk begins", "one pass of the target", "the root"]
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    settings = ServeBenchSettings(
        target=str(target),
        head=str(head),
        modes=("plain", "chain", "tree"),
        budgets=(8,),
        batches=(2,),
        prompts=(str(prompts),),
        requests=4,
        max_new_tokens=24,
        warm_up=0,
        raw=True,
        server_options=OPTIONS,
    )
    plan = prepare(settings, Places(out=str(tmp_path / "report.json")), check_client())
    report = run_serve(plan, print, ForkedProcess)
    assert report["finished"], report["failures"]
    assert json.loads((tmp_path / "report.json").read_text())["finished"]
    rows = {each["name"]: each["rows"][0] for each in report["configurations"]}
    assert list(rows) == ["plain", "chain", "tree-8"]
    for row in rows.values():
        assert row["requests"] == row["texts_equal_to_plain"] == 4
        assert row["repeats"][0]["new_tokens"] == rows["plain"]["repeats"][0]["new_tokens"] > 40
        assert row["figures"]["tokens_per_second"] > 0
        assert row["figures"]["e2el_ms"]["median"] > row["figures"]["ttft_ms"]["median"] > 0
        assert row["repeats"][0]["cached_prompt_share"] in (None, 0.0)
    assert rows["plain"]["figures"]["rounds"] == 0
    assert rows["chain"]["figures"]["rounds"] > 10 < rows["tree-8"]["figures"]["rounds"]
    # Near the end of an answer fewer nodes are drafted.
    assert 5 < rows["chain"]["figures"]["rows_per_round"] <= 8
    assert 5 < rows["tree-8"]["figures"]["rows_per_round"] <= 8
