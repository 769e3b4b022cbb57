"""What cannot be served is refused at start, in one line that names it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
from jetflow_serve.refusals import WORKER
from running import engine, tree_engine


def _edited(head: Path, to: Path, edit: Any) -> Path:
    """A copy of the head whose config.json was edited."""
    shutil.copytree(head, to)
    file = to / "config.json"
    raw = json.loads(file.read_text())
    edit(raw)
    file.write_text(json.dumps(raw))
    return to


def _refusal(target: Path, head: Path, nodes: int = 16, **options: Any) -> str:
    with pytest.raises(Exception) as raised, tree_engine(target, head, nodes, **options):
        pass
    return str(raised.value)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda raw: raw["dflash_config"].pop("causal"), 'add "causal": true beside it'),
        (
            lambda raw: (
                raw["dflash_config"].update(target_layer_ids=[2, 99])
                or raw.update(num_target_layers=100)
            ),
            "the head reads layer 99 of its target, which has 3 layers",
        ),
        (lambda raw: raw["dflash_config"].pop("target_layer_ids"), "target_layer_ids"),
        (
            lambda raw: (
                raw["dflash_config"].pop("mask_token_id")
                or raw["jetflow"].update(learned_mask=False)
            ),
            "mask_token_id",
        ),
        (lambda raw: raw.update(vocab_size=600), "vocabulary has 600 tokens, the target's 512"),
        (lambda raw: raw.update(hidden_size=32), "the head is 32 wide, the target 64"),
    ],
    ids=["causal_head", "layer", "no layers", "no mask", "vocabulary", "width"],
)
def test_heads_that_do_not_fit(
    target: Path, head: Path, tmp_path: Path, edit: Any, said: str
) -> None:
    assert said in _refusal(target, _edited(head, tmp_path / "head", edit))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tree": {"mode": "bush"}}, "mode is one of tree, chain"),
        ({"tree": {"budget": 5}}, "num_speculative_tokens must be 4; it is 16"),
        ({"tree": {"depth": 30}}, "depth 30 is more than this head drafts: 1..7"),
        ({"tree": {"wide": 3}}, "unknown keys wide"),
        ({"kv_cache_dtype": "fp8"}, "KV cache of type fp8"),
        ({"enable_lora": True}, "LoRA"),
    ],
    ids=["mode", "budget", "depth", "unknown", "cache", "lora"],
)
def test_options_that_do_not_fit(
    target: Path, head: Path, options: dict[str, Any], said: str
) -> None:
    assert said in _refusal(target, head, **options)


def test_a_worker_that_knows_no_trees(target: Path, head: Path) -> None:
    speculative = {"method": "dflash", "model": str(head), "num_speculative_tokens": 16}
    with pytest.raises(Exception) as raised, engine(target, speculative_config=speculative):
        pass
    assert f"start vLLM with --worker-cls {WORKER}" in str(raised.value)


def test_a_worker_without_a_head(target: Path) -> None:
    with pytest.raises(Exception) as raised, engine(target, worker_cls=WORKER):
        pass
    assert "give --speculative-config" in str(raised.value)


def test_a_target_with_a_window(tmp_path: Path, head: Path) -> None:
    target = tiny.make_target(tmp_path / "target")
    file = target / "config.json"
    window = {
        "use_sliding_window": True,
        "sliding_window": 64,
        "layer_types": ["sliding_attention"] * tiny.LAYERS,
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | window))
    assert "sliding window" in _refusal(target, head)


class _Kept(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def test_trees_that_are_cut_are_warned_of(target: Path, head: Path) -> None:
    kept = _Kept()
    logging.getLogger("vllm.jetflow").addHandler(kept)
    with tree_engine(target, head, 200, max_num_batched_tokens=512):
        pass
    logging.getLogger("vllm.jetflow").removeHandler(kept)
    (line,) = kept.lines
    assert "4 requests of 201 rows are 804, max_num_batched_tokens is 512" in line
