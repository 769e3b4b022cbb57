"""A config.json with a value of the wrong kind, or with an option unknown here, is refused by name.

Each value below is one that Python would have taken for another, passed on, or fallen over.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jetflow_core.head.checkpoint import HeadInfo, HeadLoadError, read_config
from jetflow_core.head.config import HeadConfig, HeadConfigError
from jetflow_core.head.published import parse_config, write_config

Config = dict[str, Any]
NAN, INFINITY = float("nan"), float("inf")


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


NESTED: list[tuple[str, object]] = [
    *(("target_layer_ids", value) for value in (
        5, ["a"], [0.5, 1, 3], [0.0, 2.0], [[0], 1, 3], "013", [False, True, 3], [True, 2],
        {"0": 1}, [0, None], [], [-1, 2], [0, 10**30], _deep(900),
    )),
    *(("mask_token_id", value) for value in ("50", 1.5, 7.0, True, [7], -1, 50, 10**30)),
    *((name, value) for name in ("causal_head", "causal", "is_causal", "draft_shift",
                                 "sample_from_anchor")
      for value in ("false", "no", "", 0, 1, 1.0, [], [True])),
]  # fmt: skip
TOP: list[tuple[str, object]] = [
    *((name, value) for name in ("hidden_size", "num_attention_heads", "intermediate_size",
                                 "num_hidden_layers", "num_key_value_heads", "head_dim",
                                 "vocab_size", "block_size", "num_target_layers",
                                 "max_position_embeddings")
      for value in ("4", 0, -2, 4.0, True, [4], {}, 10**15, NAN)),
    ("block_size", 10**9),
    *(("rms_norm_eps", value) for value in ("x", "1e-6", [1e-6], True, NAN, INFINITY, -1e-6, 0, 2)),
    *(("rope_theta", value) for value in ("x", [1e4], True, NAN, INFINITY, -5.0, 0, 10**400)),
    *((name, value) for name in ("rope_parameters", "rope_scaling") for value in (
        [1], "yarn", "linear", 3, {"type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0}, {"rope_type": "default", "type": "linear"},
        {"rope_type": ["yarn"]}, {"rope_type": "default", "factor": 2.0}, {"factor": "x"},
        {"partial_rotary_factor": 0.5}, {"rope_theta": 0}, {"rope_theta": "x"},
        {"rope_theta": 5e5}, {"full_attention": {"rope_theta": 1e4}}, {"mscale": 1.0},
    )),
    *(("architectures", value) for value in (
        3, "DFlashDraftModel", {}, [3], [["DFlashDraftModel"]], [], None,
    )),
    *(("layer_types", value) for value in (
        5, "full_attention", ["full_attention"], ["full_attention"] * 4, [["full_attention"]] * 3,
        [None] * 3, [3] * 3, [], {"0": "full_attention"},
        ["full_attention", "full_attention", "sliding_attention"], ["chunked_attention"] * 3,
    )),
    ("dflash_config", [1]), ("dflash_config", "x"), ("dflash_config", 0),
    ("jetflow", "x"), ("jetflow", [1]), ("jetflow", 3), ("jetflow", False),
    ("partial_rotary_factor", 0.5), ("partial_rotary_factor", "1"), ("rotary_pct", 0.25),
    ("attention_bias", "false"), ("attention_bias", 1), ("qkv_bias", True), ("use_bias", True),
    ("attention_out_bias", True), ("mlp_bias", True), ("attn_logit_softcapping", 50.0),
    ("query_pre_attn_scalar", 256), ("residual_multiplier", 0.2), ("embedding_multiplier", 12.0),
    ("logits_scaling", 8.0), ("use_qk_norm", False), ("no_rope_layers", [1, 0, 1]),
    ("hidden_act", ["silu"]), ("hidden_activation", "gelu"), ("num_local_experts", 8),
    ("output_multiplier", True), ("target_hidden_size", "32"), ("draft_vocab_size", 20),
    ("markov_rank", 8), ("fc_layernorm", True),
]  # fmt: skip
OWN: list[tuple[str, object]] = [
    *(("format", value) for value in (None, 2, "1", True, 1.0, [1])),
    *((name, value) for name in ("learned_mask", "normalize_taps")
      for value in ("true", "", 0, 1, [])),
    *((name, value) for name in ("path_rank", "candidates", "depth_offset_rows")
      for value in ("a", "4", 1.5, True, -1, [1], 10**9)),
    ("depth_offset_rows", 3), ("candidates", 0),
    ("new_term", 7), ("Format", 1),
    ("tokenizer_sha256", 5), ("tokenizer_sha256", ["a"]), ("target", 3), ("target", True),
    *(("top1_by_depth", value) for value in (
        0.5, "abc", "0.5", [NAN], [INFINITY], [-0.1], [1.5], ["0.5"], [None], [[0.5]], [True],
        {"1": 0.5},
    )),
    *(("provenance", value) for value in ("x", [1], 3)),
]  # fmt: skip


def _named(cases: list[tuple[str, object]]) -> list[Any]:
    return [pytest.param(name, value, id=f"{name}-{number}")
            for number, (name, value) in enumerate(cases)]  # fmt: skip


def _refused(raw: Config, tmp_path: Path, name: str) -> None:
    """Read as a file, so that JSON's own spellings of numbers take part."""
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(HeadConfigError) as caught:
        read_config(tmp_path)
    message = str(caught.value)
    assert name in message
    assert str(tmp_path / "config.json") in message
    assert len(message) < len(str(tmp_path)) + 1000


@pytest.mark.parametrize(("name", "value"), _named(NESTED))
def test_wrong_values_in_dflash_config_are_refused_by_name(
    name: str, value: object, published_config: Config, tmp_path: Path
) -> None:
    published_config["dflash_config"].pop("causal_head")
    published_config["dflash_config"][name] = value
    _refused(published_config, tmp_path, name)


@pytest.mark.parametrize(("name", "value"), _named(TOP))
def test_wrong_values_at_the_top_level_are_refused_by_name(
    name: str, value: object, published_config: Config, tmp_path: Path
) -> None:
    known_as = {"num_hidden_layers": "num_"}.get(name, name)
    _refused(published_config | {name: value}, tmp_path, known_as)


@pytest.mark.parametrize(("name", "value"), _named(OWN))
def test_wrong_values_of_our_own_are_refused_by_name(
    name: str, value: object, head_config: Callable[..., HeadConfig], tmp_path: Path
) -> None:
    raw = write_config(head_config())
    raw["jetflow"][name] = value
    _refused(raw, tmp_path, name)


@pytest.mark.parametrize("key", ["slot_bias", "foo", "target_layers", "Causal"])
def test_an_unknown_key_of_dflash_config_is_named_beside_the_allowed_ones(
    key: str, published_config: Config
) -> None:
    published_config["dflash_config"][key] = 3.0
    with pytest.raises(HeadConfigError, match=f"holds '{key}', unknown here") as caught:
        parse_config(published_config)
    for allowed in ("target_layer_ids", "mask_token_id", "causal_head", "draft_shift"):
        assert allowed in str(caught.value)


def test_an_unsupported_option_is_seen_in_both_places(published_config: Config) -> None:
    published_config["dflash_config"]["attention_bias"] = False
    with pytest.raises(HeadConfigError, match="attention_bias"):
        parse_config(published_config | {"attention_bias": True})


@pytest.mark.parametrize("name", ["hidden_size", "num_attention_heads"])
@pytest.mark.parametrize("value", ["64", 0, 5, 10**15, None, 2.5, [8]])
def test_the_head_dim_is_never_made_from_nonsense(
    name: str, value: object, published_config: Config
) -> None:
    """It is the quotient of two others where it is absent; 32 by 5 leaves a rest."""
    del published_config["head_dim"]
    with pytest.raises(HeadConfigError, match=f"{name}|head_dim"):
        parse_config(published_config | {name: value})


def _sliding(raw: Config) -> None:
    raw.update(layer_types=["sliding_attention"] * 3, sliding_window=128)
    raw["dflash_config"]["causal_head"] = False


def _two_shifts(raw: Config) -> None:
    raw["dflash_config"] |= {"draft_shift": False, "sample_from_anchor": True}


def _two_places(raw: Config) -> None:
    raw["mask_token_id"] = 8


def _two_thetas(raw: Config) -> None:
    raw["rope_parameters"] = {"rope_type": "default", "rope_theta": 2e4}


def _two_masks(raw: Config) -> None:
    raw["jetflow"] = {"format": 1, "learned_mask": True}


@pytest.mark.parametrize("change", [_sliding, _two_shifts, _two_places, _two_thetas])
def test_contradictions_are_refused(change: Any, published_config: Config) -> None:
    change(published_config)
    with pytest.raises(HeadConfigError, match="contradicts itself"):
        parse_config(published_config)


def test_a_head_has_one_mask(published_config: Config) -> None:
    _two_masks(published_config)
    with pytest.raises(HeadConfigError, match="either a learned mask vector or a mask_token_id"):
        parse_config(published_config)


def test_a_window_that_hides_context_is_refused_however_it_is_asked_for(
    published_config: Config,
) -> None:
    raw = published_config | {"use_sliding_window": True, "sliding_window": 8}
    with pytest.raises(HeadConfigError, match="use_sliding_window"):
        parse_config(raw)


HARMLESS: list[Config] = [
    {"torch_dtype": "bfloat16", "dtype": "bfloat16", "transformers_version": "4.57.1",
     "use_cache": True, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": [2, 3],
     "pad_token_id": None, "attention_dropout": 0.0, "initializer_range": 0.02,
     "max_window_layers": 5, "model_type": "qwen3", "auto_map": {"AutoModel": "dflash.X"},
     "_name_or_path": "x", "hidden_act": "silu", "attention_bias": False, "vocab_file": "x"},
    {"use_sliding_window": False, "sliding_window": None, "rope_scaling": None},
    {"use_sliding_window": False, "sliding_window": 8},
    {"rope_scaling": {"rope_type": "default", "type": "default", "factor": 1.0}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000}},
    {"partial_rotary_factor": 1.0, "rope_interleave": False, "num_experts": 0, "logit_scale": 1},
    {"block_size": 6, "jetflow": None}, {"jetflow": {}}, {"layer_types": None},
    {"draft_vocab_size": 50, "target_hidden_size": 32, "is_causal": True},
]  # fmt: skip


@pytest.mark.parametrize("harmless", HARMLESS)
def test_what_does_not_change_the_head_stays_allowed(
    harmless: Config, published_config: Config
) -> None:
    assert parse_config(published_config | harmless) == parse_config(deepcopy(published_config))


def test_whole_numbers_are_numbers_too(published_config: Config) -> None:
    found = parse_config(published_config | {"rope_theta": 10000, "rms_norm_eps": 1})
    assert (found.rope_theta, found.rms_norm_eps) == (1e4, 1.0)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 200_000 + b"]" * 200_000, "is no JSON"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, "is no JSON"),
        (b'{"block_size": ' + b"9" * 5000 + b"}", "is no JSON"),
        ('{"block_size": 6}'.encode("utf-16"), "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"), (b"", "is no JSON"), (b"[]", "holds list"),
        (b"null", "holds NoneType"), (b"3", "holds int"),
    ],
    ids=["deep list", "deep mapping", "digits", "utf-16", "bytes", "empty", "list", "null", "3"],
)  # fmt: skip
def test_a_file_that_is_no_mapping_is_refused(content: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(HeadLoadError, match=says):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"candidates": 10**9}, {"block_size": 10**9}, {"hidden_size": 10**15}, {"rope_theta": NAN},
        {"rope_theta": 0.0}, {"rope_theta": "1"}, {"rms_norm_eps": NAN}, {"rms_norm_eps": -1.0},
        {"causal": "false"}, {"draft_shift": 1}, {"learned_mask": 0}, {"normalize_taps": None},
        {"target_layer_ids": [0, 2]}, {"target_layer_ids": (0.0, 2.0)},
        {"target_layer_ids": (True, 2)}, {"mask_token_id": 1.5}, {"mask_token_id": True},
        {"num_layers": 10**9}, {"depth_offset_rows": 6.0},
    ],
)  # fmt: skip
def test_a_description_made_in_python_is_held_to_the_same(
    changes: dict[str, Any], head_config: Callable[..., HeadConfig]
) -> None:
    with pytest.raises(HeadConfigError, match=next(iter(changes))):
        head_config(**changes)


@pytest.mark.parametrize(
    "fields",
    [{"top1_by_depth": (NAN,)}, {"tokenizer_sha256": 5}, {"target": 5}, {"provenance": [1]}],
)
def test_a_head_says_nothing_of_itself_that_could_not_be_read(fields: dict[str, Any]) -> None:
    with pytest.raises(HeadConfigError, match=next(iter(fields))):
        HeadInfo(**fields)
