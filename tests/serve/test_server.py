"""``jetflow serve``: what it fills in for vLLM's server, and what it refuses before that."""

import json
from pathlib import Path

import pytest
from jetflow_core.head.checkpoint import HeadInfo, save_head
from jetflow_core.head.config import HeadConfig
from jetflow_serve.heads import check_target, read_head
from jetflow_serve.options import OptionError, ServeOptions
from jetflow_serve.refusals import SCHEDULER, WORKER, ServeRefused
from jetflow_serve.server import server_arguments, tree_section


def _value(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_the_options_of_speculation_are_filled_in() -> None:
    section = tree_section(ServeOptions(mode="chain", depth=3))
    arguments = server_arguments("t", "h", 16, ["--port", "5", "-q"], section)
    assert _value(arguments, "--model") == "t"
    assert _value(arguments, "--worker-cls") == WORKER
    assert json.loads(_value(arguments, "--speculative-config")) == {
        "method": "dflash",
        "model": "h",
        "num_speculative_tokens": 15,
    }
    section = json.loads(_value(arguments, "--additional-config"))
    assert section == {"jetflow": {"mode": "chain", "depth": 3}}
    assert arguments[-3:] == ["--port", "5", "-q"]


def test_budget_auto_is_said_in_the_section_and_its_most_to_vllm() -> None:
    section = tree_section(ServeOptions(budget="auto"))
    arguments = server_arguments("t", "h", 33, [], section)
    assert json.loads(_value(arguments, "--speculative-config"))["num_speculative_tokens"] == 32
    assert json.loads(_value(arguments, "--additional-config")) == {
        "jetflow": {"mode": "tree", "budget": "auto"}
    }


def test_an_audit_brings_its_scheduler() -> None:
    arguments = server_arguments("t", "h", 16, [], tree_section(ServeOptions(audit=0.25)))
    assert _value(arguments, "--scheduler-cls") == SCHEDULER
    assert json.loads(_value(arguments, "--additional-config"))["jetflow"]["audit"] == 0.25
    assert "--scheduler-cls" not in server_arguments("t", "h", 16, [], {})


@pytest.mark.parametrize("joined", [False, True])
def test_the_users_own_additional_config_is_kept(joined: bool) -> None:
    own = json.dumps({"other": 1, "jetflow": {"max_children": 4}})
    given = [f"--additional-config={own}"] if joined else ["--additional-config", own]
    arguments = server_arguments("t", "h", 16, given, {"mode": "tree"})
    assert arguments.count("--additional-config") == 1
    assert json.loads(_value(arguments, "--additional-config")) == {
        "other": 1,
        "jetflow": {"max_children": 4, "mode": "tree"},
    }


@pytest.mark.parametrize(
    ("given", "budget", "said"),
    [
        (["--worker-cls", "x"], 16, "--worker-cls is filled in"),
        (["--speculative-config={}"], 16, "--speculative-config is filled in"),
        (["--additional-config", "{"], 16, "is no JSON: '{'"),
        (["--additional-config", "[1]"], 16, "must be a mapping"),
        ([], 1, "budget 1 counts the root and drafts nothing: at least 2"),
    ],
)
def test_what_contradicts_is_refused(given: list[str], budget: int, said: str) -> None:
    with pytest.raises(ServeRefused, match=said.replace("{", r"\{")):
        server_arguments("t", "h", budget, given, {})


def test_unknown_keys_of_the_section_are_refused_here_too() -> None:
    with pytest.raises(OptionError, match="unknown keys wide"):
        server_arguments("t", "h", 16, ["--additional-config", '{"jetflow": {"wide": 1}}'], {})


def test_a_target_that_the_head_was_not_made_for(tmp_path: Path) -> None:
    from jetflow_core.head.model import DraftHead

    config = HeadConfig(
        hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
        vocab_size=50, block_size=6, num_target_layers=4, target_layer_ids=(3,), mask_token_id=1,
    )  # fmt: skip
    head = read_head(save_head(tmp_path / "head", DraftHead(config), HeadInfo()))
    target = tmp_path / "target"
    target.mkdir()
    sizes = {"num_hidden_layers": 4, "hidden_size": 8, "vocab_size": 50}

    def says(**changed: int) -> None:
        (target / "config.json").write_text(json.dumps({**sizes, **changed}))
        check_target(head, str(target))

    says()
    with pytest.raises(ServeRefused, match=r"reads layer 3 .* has 3 layers; .*50 tokens.*60"):
        says(num_hidden_layers=3, vocab_size=60)
    # What is no folder is a name on a hub, which vLLM resolves.
    check_target(head, "somebody/some-target")
