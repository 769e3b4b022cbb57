"""``jetflow serve --budget auto --audit``: both work across the server's processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from forking import ForkedProcess
from requests_made import SETS
from serving import metrics, server

Tokens = dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def url(target: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = [
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "2",
        "--max-num-batched-tokens", "2048", "--block-size", "32", "--kv-cache-memory-bytes", "32M",
        "--served-model-name", "tiny", "--seed", "0",
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("server")
    arguments = [str(target), "--head", str(head), "--budget", "auto", "--most", "9"]
    arguments += ["--audit", "1", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        # What the command itself starts, engine_server.py sees.
        with server(arguments, folder / "log", ForkedProcess) as address:
            yield address


def test_answers_are_right_and_found_the_same(url: str, plain_tokens: Tokens) -> None:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
    used = 0
    for (prompt, _), answer in zip(SETS["greedy"], plain_tokens["greedy"], strict=True):
        reply = client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=48,
            temperature=0.0,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        assert reply.choices[0].token_ids == answer
        used += reply.usage.completion_tokens
    # Audits end without anybody asking for more.
    for _ in range(200):
        found = metrics(url)
        if found.get("jetflow:audited_requests_total") == len(SETS["greedy"]):
            break
        time.sleep(0.2)
    assert found["jetflow:audited_requests_total"] == len(SETS["greedy"])
    assert found.get("jetflow:audit_gap_count", 0) == 0
    assert found["vllm:generation_tokens_total"] == used
    assert found["jetflow:auto_steps_total"] > 50
    assert 1 <= found["jetflow:budget"] <= 9
