"""What ``jetflow bench serve`` refuses before anything starts, and what it would start."""

from __future__ import annotations

import math
import socket
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jetflow_core.cli import run_app
from jetflow_core.commands.registry import GROUP, build_app
from jetflow_serve.bench import client, configurations
from jetflow_serve.bench.client import ClientMissing, check_client
from jetflow_serve.bench.configurations import (
    JETFLOW,
    Configuration,
    Served,
    default_kinds,
    offers_auto,
    plan_running,
    plan_servers,
)
from jetflow_serve.bench.loads import parse_batches, parse_rates, plan_loads
from jetflow_serve.bench.preparing import Places, prepare
from jetflow_serve.bench.settings import ServeBenchSettings
from jetflow_serve.installed import InstalledVllm
from jetflow_serve.server import SERVER

VLLM = InstalledVllm(Path("nowhere"), "0.32.0")


def _command(*words: str) -> int:
    entry = EntryPoint("bench.serve", "jetflow_serve.commands.bench_serve:command", GROUP)
    return run_app(build_app([entry]), ["bench", "serve", *words])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--modes", "plain,bush"], "mode 'bush' is unknown"),
        (["--rates", "0"], "rate 0 is out of range: above 0"),
        (["--rates", "2,-1"], "rate -1 is out of range"),
        (["--rates", "inf"], "rate inf is out of range"),
        (["--rates", "fast"], "rate 'fast' is no number"),
        (["--rates", "2,2.0"], "rate 2 comes twice"),
        (["--batches", "1,0"], "batch 0 is out of range"),
        (["--batches", "1.5"], "batch '1.5' is no whole number"),
        (["--batches", ""], "no load: give --batches, --rates, or both"),
        (["--budgets", "1,16"], "budget 1 is out of range for a tree"),
        (["--budgets", "5000"], "budget '5000' is out of range"),
        (["--temperature", "-1"], "temperature -1.0 is out of range"),
        (["--requests", "0"], "requests 0 is out of range"),
        (["--requests", "5"], "requests 5 never fill a batch of 64"),
        (["--rate", "3"], "Unknown option: --rate"),
        (["--", "--port", "3"], "--port is set by the benchmark"),
        (["--", "--worker-cls=x"], "--worker-cls is set by the benchmark"),
        (["--url", "localhost:8000"], "is no server's address"),
        (["--url", "http://localhost:99999"], "is no server's address"),
        (["--url", "http://a/v1"], "is no server's address"),
        (["--url", "http://a", "--modes", "chain,tree"], "drafts either trees or chains"),
        (["--url", "http://a", "--head", "h"], "--head: only for servers that are started"),
        (["--url", "http://a", "--", "-q"], "options of vLLM: only for servers that are started"),
        (["--plot", "x.txt"], "its name must end in"),
        (["--out", "a.png", "--plot", "a.png"], "two outputs have one name"),
    ],
)
def test_bad_options(capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert _command(*words) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_a_missing_client_is_told_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "find_vllm", lambda: None)
    assert _command("--out", str(tmp_path / "no" / "report.json")) == 2
    assert "no vLLM is installed here" in capsys.readouterr().err
    monkeypatch.setattr(client, "find_vllm", lambda: InstalledVllm(tmp_path, "0.32.0"))
    with pytest.raises(ClientMissing, match=r"has no benchmark client, benchmarks/serve\.py"):
        check_client()
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "serve.py").touch()
    monkeypatch.setattr(client, "find_spec", lambda name: None if name == "pandas" else name)
    with pytest.raises(ClientMissing, match="needs pandas, not installed here"):
        check_client()
    monkeypatch.setattr(client, "find_spec", lambda name: name)
    assert check_client().version == "0.32.0"


def test_what_only_the_machine_can_tell(tmp_path: Path) -> None:
    def refused(said: str, places: Places, **options: Any) -> None:
        with pytest.raises(ValueError, match=said):
            prepare(ServeBenchSettings(**options), places, VLLM)

    refused("the folder .* does not exist", Places(out=str(tmp_path / "no" / "a.json")))
    refused("cannot read the prompts", Places(), prompts=(str(tmp_path / "no.jsonl"),))
    refused("not with --url", Places(port=80), url="http://localhost:1", modes=("plain",))
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        refused(f"port {port} cannot be used", Places(port=port))
    url = f"http://127.0.0.1:{port}"
    refused(f"no server answers at {url}", Places(), url=url, modes=("plain", "tree"))
    target = tmp_path / "target"
    target.mkdir()
    refused("chain and trees need --head", Places(), target=str(target))
    refused("no folder|does not exist|no draft head", Places(), head=str(tmp_path / "no"))
    assert not list(tmp_path.glob("*.json*"))


def test_the_shipped_head_and_how_deep_it_goes() -> None:
    with pytest.raises(ValueError, match=r"depth 99 is out of range: the head .* goes to"):
        prepare(ServeBenchSettings(depth=99), Places(), VLLM)


def test_auto_is_offered_where_the_plugin_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_auto(*, budget: int | str = "auto") -> None:
        raise AssertionError(budget)

    def without(*, budget: int = 64) -> None:
        raise AssertionError(budget)

    with_auto.__annotations__["budget"] = 'int | Literal["auto"]'
    monkeypatch.setattr(configurations, "command", with_auto)
    assert offers_auto() and default_kinds(running=False) == configurations.KINDS
    monkeypatch.setattr(configurations, "command", without)
    assert not offers_auto() and default_kinds(running=False) == ("plain", "chain", "tree")
    assert default_kinds(running=True) == ("plain", "tree")
    with pytest.raises(ValueError, match="mode auto: this version"):
        prepare(ServeBenchSettings(modes=("auto",)), Places(), VLLM)


def test_servers() -> None:
    served = Served(target="T", head="H", depth=5, chain_budget=6, options=("--dtype", "float32"))
    plans = plan_servers(configurations.KINDS, (4, 16), served, one_server=False)
    started = {plan.name: (plan.module, *plan.arguments) for plan in plans}
    rest = ("--no-enable-prefix-caching", "--dtype", "float32")
    jetflow = (JETFLOW, "serve", "T", "--head", "H", "--budget")
    assert started == {
        "plain": (SERVER, "--model", "T", *rest),
        "chain": (*jetflow, "6", "--mode", "chain", "--depth", "5", *rest),
        "tree-4": (*jetflow, "4", "--depth", "5", *rest),
        "tree-16": (*jetflow, "16", "--depth", "5", *rest),
        "auto": (*jetflow, "auto", "--most", "16", "--depth", "5", *rest),
    }
    own = Served(
        target="T", head=None, depth=None, chain_budget=1, options=("--enable-prefix-caching",)
    )
    [plain] = plan_servers(("plain",), (), own, one_server=False)
    assert plain.arguments == ("--model", "T", "--enable-prefix-caching")


def test_a_running_server_is_asked_by_each_request() -> None:
    plan = plan_running(("plain", "tree", "auto"), (4, 16))
    assert plan.module is None
    assert [(each.name, each.extra_body) for each in plan.configurations] == [
        ("plain", {"vllm_xargs": {"jetflow_budget": "off"}}),
        ("tree-4", {"vllm_xargs": {"jetflow_budget": 4}}),
        ("tree-16", {"vllm_xargs": {"jetflow_budget": 16}}),
        ("auto", {}),
    ]
    [chain] = plan_running(("chain",), ()).configurations
    assert chain == Configuration("chain", "chain", None) and chain.extra_body == {}


@settings(max_examples=30)
@given(st.lists(st.integers(1, 65536), unique=True))
def test_batches_come_back_sorted(values: list[int]) -> None:
    assert parse_batches(",".join(map(str, values))) == tuple(sorted(values))


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 1e6), unique=True))
def test_rates_come_back_sorted(values: list[float]) -> None:
    assert parse_rates(" , ".join(map(repr, values))) == tuple(sorted(values))


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 100), max_size=3),
    st.lists(st.floats(0.01, 100), max_size=3),
    st.none() | st.integers(1, 50),
    st.integers(1, 50),
)
def test_enough_requests(
    batches: list[int], rates: list[float], requests: int | None, prompts: int
) -> None:
    for load in plan_loads(batches, rates, requests, prompts):
        if requests is not None:
            assert load.requests == requests
        elif load.kind == "batch":
            assert load.requests == max(prompts, 4 * load.value)
        else:
            assert load.requests == max(prompts, math.ceil(30 * load.value))
