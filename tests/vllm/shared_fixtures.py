"""Shared by the tests of a real engine: the tiny target, its head, and what plain decoding says.

No conftest.py, which the default run would load, and it has no vLLM.
"""

from __future__ import annotations

import os

# Before vLLM is imported: one process, one thread a process, nothing asked of a network.
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_LOGGING_LEVEL="WARNING",
    VLLM_NO_USAGE_STATS="1",
    OMP_NUM_THREADS="1",
    # Else an engine binds this process to one core, and the server it starts with it.
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    # vLLM compiles a few small functions even when it runs eagerly; that takes longer than they do.
    TORCHDYNAMO_DISABLE="1",
    HF_HUB_OFFLINE="1",
)

from pathlib import Path

import pytest
import tiny
from requests_made import SETS
from running import answers, engine


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_target(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.make_head(tmp_path_factory.mktemp("models") / "head", tiny.head_config())


@pytest.fixture(scope="session")
def plain(target: Path) -> dict[str, list[object]]:
    """What an engine without speculation answers to every set of requests."""
    with engine(target) as llm:
        return {name: answers(llm, requests) for name, requests in SETS.items()}


@pytest.fixture(scope="session")
def plain_tokens(plain: dict[str, list[object]]) -> dict[str, list[list[int]]]:
    return {name: [list(one.token_ids) for one in found] for name, found in plain.items()}


@pytest.fixture(scope="session")
def known(plain_tokens: dict[str, list[list[int]]]) -> list[tuple[list[int], list[int]]]:
    """Prompts of all sets with their answers, for the oracle."""
    return [
        (prompt, answer)
        for name in SETS
        for (prompt, _), answer in zip(SETS[name], plain_tokens[name], strict=True)
    ]
