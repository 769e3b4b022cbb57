"""Options of the ``jetflow`` section, and what is refused before anything loads."""

from dataclasses import replace
from typing import Any

import pytest
from jetflow_core.head.config import HeadConfig
from jetflow_serve.options import OptionError, ServeOptions, read_options
from jetflow_serve.refusals import (
    SCHEDULER,
    WORKER,
    Engine,
    ServeRefused,
    check_engine,
    check_head_keys,
)

HEAD = HeadConfig(
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=512,
    block_size=8,
    num_target_layers=30,
    target_layer_ids=(2, 20),
    mask_token_id=3,
    candidates=16,
)
ENGINE = Engine(
    worker_cls=WORKER,
    scheduler_cls=None,
    target_layers=30,
    target_hidden_size=64,
    target_vocab_size=512,
    target_is_hybrid=False,
    target_windows=False,
    num_speculative_tokens=63,
    max_num_seqs=4,
    max_num_batched_tokens=2048,
    pipeline_parallel=1,
    tensor_parallel=1,
    data_parallel=1,
    lora=False,
    cache_dtype="auto",
    async_scheduling=False,
    width_by_load=False,
)


def test_without_a_section_all_is_by_default() -> None:
    for nothing in (None, {}, {"other": 1}, "no mapping"):
        assert read_options(nothing) == ServeOptions()


def test_the_section_is_read() -> None:
    section = {"mode": "chain", "budget": 17, "depth": 5, "max_children": 3}
    options = read_options({"jetflow": section})
    assert options == ServeOptions(mode="chain", budget=17, depth=5, max_children=3)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"mode": "bush"}, "mode is one of tree, chain; got 'bush'"),
        ({"budget": 0}, 'budget must be a whole number from 1 to 4096 or "auto"; got 0'),
        ({"budget": "most"}, "got 'most'"),
        ({"depth": "auto"}, "from 1 to 1024; got 'auto'"),
        ({"budget": True}, "got True"),
        ({"depth": "5"}, "depth must be a whole number from 1 to 1024; got '5'"),
        ({"max_children": 1.5}, "max_children"),
        ({"audit": 1.5}, "audit is a share from 0 to 1; got 1.5"),
        ({"audit": True}, "got True"),
        ({"audit": "all"}, "got 'all'"),
        ({"top": 1, "width": 2}, "unknown keys top, width; known are mode, budget"),
        ([], "must be a mapping"),
    ],
)
def test_wrong_options_are_named(section: object, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        read_options({"jetflow": section})


def test_a_head_that_only_says_causal_head_is_refused_with_the_fix() -> None:
    with pytest.raises(ServeRefused, match=r'h/config.json.*add "causal": true'):
        check_head_keys({"dflash_config": {"causal_head": True}}, "h/config.json")
    check_head_keys({"dflash_config": {"causal_head": True, "causal": True}}, "h/config.json")
    check_head_keys({"dflash_config": {"causal": False}}, "h/config.json")
    check_head_keys({}, "h/config.json")


def test_what_fits_is_served_without_a_word() -> None:
    assert check_engine(ENGINE, HEAD, ServeOptions(budget="auto")) == []
    audited = replace(ENGINE, scheduler_cls=SCHEDULER)
    assert check_engine(audited, HEAD, ServeOptions(audit=0.01)) == []
    assert check_engine(ENGINE, HEAD, ServeOptions(budget=64, depth=7, max_children=16)) == []


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ({"target_layers": 12}, {}, "reads layer 20 of its target, which has 12 layers"),
        ({"target_vocab_size": 500}, {}, "vocabulary has 512 tokens, the target's 500"),
        ({"target_hidden_size": 32}, {}, "the head is 64 wide, the target 32"),
        ({"worker_cls": "vllm.Other"}, {}, f"start vLLM with --worker-cls {WORKER}"),
        ({"pipeline_parallel": 2}, {}, "pipeline parallel"),
        ({"tensor_parallel": 2}, {}, "tensor parallel"),
        ({"lora": True}, {}, "LoRA"),
        ({"target_is_hybrid": True}, {}, "keep a state"),
        ({"target_windows": True}, {}, "sliding window"),
        ({"cache_dtype": "fp8"}, {}, "KV cache of type fp8"),
        ({"async_scheduling": True}, {}, "--no-async-scheduling"),
        ({"data_parallel": 2, "width_by_load": True}, {}, "data parallel with width by load"),
        ({}, {"audit": 0.5}, f"start vLLM with --scheduler-cls {SCHEDULER}"),
        ({"scheduler_cls": "their.Own"}, {"audit": 1}, "needs our scheduler"),
        ({"width_by_load": True}, {"budget": "auto"}, "both choose by load"),
        ({}, {"budget": 63}, "num_speculative_tokens must be 62; it is 63"),
        ({}, {"depth": 8}, "depth 8 is more than this head drafts: 1..7"),
        ({}, {"max_children": 17}, "more than the head's 16 candidates"),
    ],
)
def test_what_is_not_served_is_refused(
    engine: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ServeRefused) as refusal:
        check_engine(replace(ENGINE, **engine), HEAD, ServeOptions(**options))
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(ServeRefused, match=r"layer 20.*LoRA.*depth 9"):
        check_engine(replace(ENGINE, target_layers=3, lora=True), HEAD, ServeOptions(depth=9))


def test_trees_that_the_scheduler_would_cut_are_warned_of() -> None:
    (warning,) = check_engine(replace(ENGINE, max_num_seqs=64), HEAD, ServeOptions())
    assert "64 requests of 64 rows are 4096, max_num_batched_tokens is 2048" in warning
