"""``jetflow serve``: a stock client, streaming, many kinds of requests at once, and its metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from requests_made import SETS
from serving import metrics, server

Tokens = dict[str, list[list[int]]]


@pytest.fixture(scope="module")
def url(target: Path, head: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    options = [
        "--dtype", "float32", "--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8",
        "--max-num-batched-tokens", "2048", "--block-size", "32", "--kv-cache-memory-bytes", "32M",
        "--served-model-name", "tiny", "--seed", "0",
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = [str(target), "--head", str(head), "--budget", "17", *options]
    with server(arguments, log) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)


def _ask(client: openai.OpenAI, prompt: list[int], **options: Any) -> Any:
    options = {"max_tokens": 24, "temperature": 0.0, **options}
    return client.completions.create(model="tiny", prompt=prompt, **options)


def test_the_same_tokens_as_without_speculation(
    client: openai.OpenAI, plain_tokens: Tokens
) -> None:
    for (prompt, _), answer in zip(SETS["greedy"], plain_tokens["greedy"], strict=True):
        extra = {"ignore_eos": True, "return_token_ids": True}
        reply = _ask(client, prompt, max_tokens=48, extra_body=extra)
        assert reply.choices[0].token_ids == answer
        assert reply.usage.completion_tokens == 48


def test_streams_say_what_whole_answers_say(client: openai.OpenAI) -> None:
    for prompt, _ in SETS["greedy"]:
        whole = _ask(client, prompt, stop=["a"]).choices[0]
        parts = list(_ask(client, prompt, stop=["a"], stream=True))
        assert "".join(part.choices[0].text for part in parts) == whole.text
        assert parts[-1].choices[0].finish_reason == whole.finish_reason
        assert "a" not in whole.text


def test_many_kinds_of_requests_at_once(client: openai.OpenAI, url: str) -> None:
    """Twenty clients: whoever asks the same twice is answered the same; some go away early."""
    before = metrics(url)
    kinds: list[dict[str, Any]] = [
        {},
        {"stop": ["e", "the"]},
        {"temperature": 1.0, "seed": 7},
        {"temperature": 0.8, "seed": 9, "top_p": 0.7, "logprobs": 3},
        {"extra_body": {"structured_outputs": {"regex": "(ab|cd)*e"}}},
        {"frequency_penalty": 1.0},
    ]
    prompts = [prompt for prompt, _ in SETS["greedy"]][:3]
    jobs = [(prompts[n % 3], kinds[n % 6]) for n in range(18)]
    with ThreadPoolExecutor(20) as pool:
        leaving = [pool.submit(_leave, client, prompt) for prompt in prompts[:2]]
        replies = list(pool.map(lambda job: _ask(client, job[0], **job[1]), jobs))
        for one in leaving:
            one.result()
    for reply, (prompt, options) in zip(replies, jobs, strict=True):
        alone = _ask(client, prompt, **options).choices[0]
        assert reply.choices[0].text == alone.text
        assert reply.choices[0].finish_reason == alone.finish_reason
    after = _quiet(url)
    used = 2 * sum(reply.usage.completion_tokens for reply in replies)
    written = after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"]
    # Those who left early had written something that nobody counted.
    assert used <= written <= used + 2 * 400


def test_vllms_metrics_count_nodes_and_depths(url: str) -> None:
    found = metrics(url)
    drafted = found["vllm:spec_decode_num_draft_tokens_total"]
    assert drafted > 10 * found["vllm:spec_decode_num_drafts_total"] > 0
    by_depth = found["vllm:spec_decode_num_accepted_tokens_per_pos_total"]
    assert by_depth == found["vllm:spec_decode_num_accepted_tokens_total"]


def test_our_metrics_come_from_the_workers_process(client: openai.OpenAI, url: str) -> None:
    before = _quiet(url)
    reply = _ask(client, SETS["greedy"][0][0], extra_body={"ignore_eos": True})
    after = _quiet(url)

    def grew(name: str) -> float:
        return after[name] - before[name]

    nodes, kept = grew("jetflow:nodes_total"), grew("jetflow:accepted_by_depth_total")
    assert nodes == grew("vllm:spec_decode_num_draft_tokens_total") > 0
    assert kept == grew("vllm:spec_decode_num_accepted_tokens_total")
    rounds = grew("jetflow:rounds_total")
    assert rounds == grew("jetflow:round_rows_count")
    assert grew("jetflow:tree_depth_count") == grew("vllm:spec_decode_num_drafts_total")
    # What was kept behind the last token wanted is not written.
    assert 0 <= rounds + kept - reply.usage.completion_tokens <= 7
    # Whose client has gone was verified too, which vLLM does not count.
    assert after["jetflow:nodes_total"] >= after["vllm:spec_decode_num_draft_tokens_total"]
    assert after["jetflow:fallbacks_total"] > 0


@pytest.mark.parametrize(
    "options",
    [{"temperature": 1.0, "extra_body": {"min_p": 0.1}}, {"logit_bias": {"5": 10.0}}],
    ids=["min_p", "logit_bias"],
)
def test_what_is_not_served_is_refused_by_name(
    client: openai.OpenAI, options: dict[str, Any]
) -> None:
    with pytest.raises(openai.BadRequestError, match=r"min_p|logit_bias"):
        _ask(client, [5, 6, 7], **options)


def _leave(client: openai.OpenAI, prompt: list[int]) -> None:
    """Reads the beginning of a long answer, and goes away."""
    extra = {"ignore_eos": True}
    stream = _ask(client, prompt, max_tokens=400, stream=True, extra_body=extra)
    for _, _part in zip(range(3), stream, strict=False):
        pass
    stream.close()


def _quiet(url: str) -> dict[str, float]:
    """The metrics once no request runs."""
    for _ in range(100):
        found = metrics(url)
        if found["vllm:num_requests_running"] == 0:
            return found
        time.sleep(0.2)
    raise TimeoutError("requests of clients who left are still running")
