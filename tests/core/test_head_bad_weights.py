"""Weights that are no weights of the head are refused; writing a head never costs other files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from jetflow_core.head.checkpoint import HeadInfo, HeadLoadError, load_head, save_head
from jetflow_core.head.model import DraftHead
from safetensors.torch import save_file

Config = dict[str, Any]
Tensors = dict[str, torch.Tensor]
Write = Callable[[Config, Tensors], Path]
NewHead = Callable[..., DraftHead]
FC, SCALE = "fc.weight", "fc.weight.row_scale"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    "dtype",
    [
        torch.int8, torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64,
        torch.float8_e4m3fn, torch.float8_e5m2,
    ],
)  # fmt: skip
def test_a_type_that_holds_no_weights_is_named(
    dtype: torch.dtype,
    published_config: Config,
    published_tensors: Tensors,
    published_folder: Write,
) -> None:
    tensors = published_tensors
    tensors[FC] = tensors[FC].to(dtype)
    with pytest.raises(HeadLoadError, match=rf"fc\.weight is of type {dtype}"):
        load_head(published_folder(published_config, tensors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_floating_type_is_read(
    dtype: torch.dtype,
    published_config: Config,
    published_tensors: Tensors,
    published_folder: Write,
) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in published_tensors.items()}
    loaded = load_head(published_folder(published_config, tensors)).head
    assert torch.equal(loaded.fc.weight, tensors[FC].float())


def _eight_bit(tensors: Tensors, scale: torch.Tensor) -> None:
    tensors |= {FC: tensors[FC].to(torch.int8), SCALE: scale}


def _orphan(tensors: Tensors) -> None:
    tensors["nothing.row_scale"] = torch.ones(4)


def _beside_floats(tensors: Tensors) -> None:
    tensors[SCALE] = torch.full((32,), 2.0)


def _on_a_vector(tensors: Tensors) -> None:
    tensors["norm.weight"] = tensors["norm.weight"].to(torch.int8)
    tensors["norm.weight.row_scale"] = torch.ones(32)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_orphan, r"nothing\.row_scale is there without"),
        (_beside_floats, r"fc\.weight\.row_scale scales weights of type torch\.float32"),
        (_on_a_vector, r"norm\.weight\.row_scale has shape"),
        *((lambda tensors, scale=scale: _eight_bit(tensors, scale), says) for scale, says in (
            (torch.ones(5), r"row_scale has shape \(5,\)"),
            (torch.ones(1), r"row_scale has shape \(1,\)"),
            (torch.ones(32, 1), r"row_scale has shape \(32, 1\)"),
            (torch.ones(()), r"row_scale has shape \(\)"),
            (torch.ones(32, dtype=torch.int32), "not floating numbers"),
            (torch.full((32,), float("nan")), "at least 0"),
            (torch.full((32,), -1.0), "at least 0"),
            (torch.full((32,), float("inf")), "not finite"),
        )),
    ],
)  # fmt: skip
def test_scales_that_do_not_fit_are_named(
    change: Callable[[Tensors], None],
    says: str,
    published_config: Config,
    published_tensors: Tensors,
    published_folder: Write,
) -> None:
    change(published_tensors)
    with pytest.raises(HeadLoadError, match=says):
        load_head(published_folder(published_config, published_tensors))


def test_weights_beyond_the_wanted_type_are_named(
    published_config: Config, published_tensors: Tensors, published_folder: Write
) -> None:
    published_tensors[FC][0, 0] = 1e6
    folder = published_folder(published_config, published_tensors)
    assert load_head(folder).head.fc.weight[0, 0] == 1e6
    with pytest.raises(HeadLoadError, match=r"as torch\.float16: fc\.weight holds"):
        load_head(folder, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"dtype torch\.int8 is not one of torch\.float32"):
        load_head(folder, dtype=torch.int8)


SHARDS: list[tuple[Any, str]] = [
    ([], "holds list"), ({}, "weight_map must be a mapping"), ("x", "holds str"),
    ({"weight_map": None}, "weight_map must be a mapping"),
    ({"weight_map": ["a.safetensors"]}, "weight_map must be a mapping"),
    ({"weight_map": 3}, "weight_map must be a mapping"),
    ({"weight_map": {"x": 3}}, "must be a string, got 3"),
    ({"weight_map": {"x": ["a.safetensors"]}}, "must be a string"),
    ({"weight_map": {"x": "a.safetensors", "y": 3}}, "must be a string, got 3"),
    ({"weight_map": {"x": None, "y": "a.safetensors"}}, "must be a string, got None"),
    ({"weight_map": {"x": "n" * 300}}, "lacks shards"),
    ({"weight_map": {"x": "\0"}}, "lacks shards"),
    ({"weight_map": {"x": "absent.safetensors"}}, "lacks shards that its index names"),
    ({"weight_map": {"x": "../outside.safetensors"}}, "a shard is a file in the same folder"),
    ({"weight_map": {"x": "/etc/hostname"}}, "a shard is a file in the same folder"),
    ({"weight_map": {"x": "..\\outside.safetensors"}}, "a shard is a file in the same folder"),
    ({"weight_map": {"x": ".."}}, "a shard is a file in the same folder"),
    ({"weight_map": {"x": ""}}, "a shard is a file in the same folder"),
    ({"weight_map": {}}, "missing: fc.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("index", "says"), SHARDS)
def test_an_index_that_names_no_shards_is_refused(
    index: Any,
    says: str,
    published_config: Config,
    published_tensors: Tensors,
    published_folder: Write,
) -> None:
    folder = published_folder(published_config, published_tensors)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file(published_tensors, folder.parent / "outside.safetensors")
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(HeadLoadError, match=says) as caught:
        load_head(folder)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("content", ["{}".encode("utf-16"), b"[" * 200_000, b"9" * 5000, b""])
def test_an_index_that_is_no_json_is_refused(
    content: bytes, published_config: Config, published_folder: Write
) -> None:
    folder = published_folder(published_config, {})
    (folder / "model.safetensors").unlink()
    (folder / INDEX).write_bytes(content)
    with pytest.raises(HeadLoadError, match="is no JSON"):
        load_head(folder)


def test_shards_are_joined_and_hold_each_tensor_once(
    published_config: Config, published_tensors: Tensors, published_folder: Write
) -> None:
    names = sorted(published_tensors)
    folder = published_folder(published_config, {})
    (folder / "model.safetensors").unlink()
    halves = {"1.safetensors": names[:20], "2.safetensors": names[20:]}
    for file, held in halves.items():
        save_file({name: published_tensors[name] for name in held}, folder / file)
    shards = {name: file for file, held in halves.items() for name in held}
    (folder / INDEX).write_text(json.dumps({"weight_map": shards}))
    loaded = load_head(folder).head.state_dict()
    assert all(torch.equal(loaded[name], published_tensors[name]) for name in names)
    save_file({name: published_tensors[name] for name in names[19:]}, folder / "2.safetensors")
    with pytest.raises(HeadLoadError, match=f"holds {names[19]}, which another shard holds too"):
        load_head(folder)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


@pytest.mark.parametrize(
    "files",
    [
        {"mine/thesis.txt": "x"},
        {"mine": "a plain file"},
        {"mine/config.json": '{"architectures": ["Qwen3ForCausalLM"]}',
         "mine/model.safetensors": "a target"},
        {"mine/config.json": "{"},
        {"mine/config.json": '{"architectures": 3}'},
        {"mine/model.safetensors": "weights of something"},
        {"mine/config.json": '{"architectures": ["JetFlowDraftHead"]}', "mine/thesis.txt": "x"},
        {"mine/config.json": '{"architectures": ["JetFlowDraftHead"]}', "mine/data/rows.csv": "x"},
    ],
)  # fmt: skip
def test_nothing_but_a_head_is_ever_replaced(
    files: dict[str, str], tmp_path: Path, new_head: NewHead
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    before = _files(tmp_path)
    with pytest.raises(ValueError, match="refusing to"):
        save_head(tmp_path / "mine", new_head().float(), HeadInfo())
    assert _files(tmp_path) == before


def test_an_empty_folder_and_an_imported_head_may_be_replaced(
    tmp_path: Path,
    new_head: NewHead,
    published_config: Config,
    published_tensors: Tensors,
    published_folder: Write,
) -> None:
    (tmp_path / "empty").mkdir()
    imported = published_folder(published_config, published_tensors)
    head = new_head().float()
    for path in (tmp_path / "empty", imported):
        save_head(path, head, HeadInfo())
        assert torch.equal(load_head(path).head.fc.weight, head.fc.weight)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["empty", "head"]
