import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from jetflow_core.embedded.convert import write_folder, write_tensors
from jetflow_core.embedded.locate import find_gguf
from jetflow_core.embedded.weights import hugging_face_name, unpermute
from safetensors.torch import load_file

HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64


@pytest.fixture(scope="module")
def reader() -> Any:
    return GGUFReader(str(find_gguf()))


@pytest.fixture(scope="module")
def converted(reader: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh conversion: a cached folder would hide a converter that has changed."""
    folder = tmp_path_factory.mktemp("converted")
    lines: list[str] = []
    write_folder(reader, folder, lines.append)
    assert any("272 tensors" in line for line in lines)
    return folder


@pytest.fixture(scope="module")
def tensors(converted: Path) -> dict[str, torch.Tensor]:
    return load_file(converted / "model.safetensors")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_known_checksums(converted: Path) -> None:
    assert sha256(converted / "model.safetensors") == (
        "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"
    )
    assert sha256(converted / "tokenizer.json") == (
        "7d27c493c729a66ecefc837280b05d948b1ed50d130eebdbf911b1b36cf38ed7"
    )


def test_cached_folder_is_what_the_converter_writes_now(
    converted: Path, embedded_folder: Path
) -> None:
    # Fails on a warm cache when the converter has changed and its version has not.
    for file in converted.iterdir():
        assert sha256(file) == sha256(embedded_folder / file.name), file.name


def test_tensors_equal_the_de_quantised_file(reader: Any, tensors: dict[str, torch.Tensor]) -> None:
    assert len(reader.tensors) == len(tensors) == 272
    for entry in reader.tensors:
        expected = torch.tensor(dequantize(entry.data, entry.tensor_type))
        for part, heads in (("attn_q", HEADS), ("attn_k", KV_HEADS)):
            if part in entry.name:
                expected = expected[gguf_rows(heads)]
        found = tensors[hugging_face_name(entry.name)]
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, expected.to(torch.bfloat16)), entry.name


def gguf_rows(heads: int) -> list[int]:
    """For each Hugging Face row, where GGUF keeps it: partners i and i + 32 sit side by side."""
    return [
        head * HEAD_DIM + 2 * i + partner
        for head in range(heads)
        for partner in (0, 1)
        for i in range(HEAD_DIM // 2)
    ]


def test_unpermute_turns_one_rotary_rule_into_the_other() -> None:
    # The same attention scores must come out of adjacent pairs on the file's rows and of
    # half-and-half pairs on ours: that is what the order of rows is for.
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, HEAD_DIM, 24)).astype(np.float32)
    x, y = rng.standard_normal((2, 24))
    angles = 1e5 ** (-np.arange(32) / 32)

    def adjacent(vector: np.ndarray, position: int) -> np.ndarray:
        turned = (vector[0::2] + 1j * vector[1::2]) * np.exp(1j * position * angles)
        return np.stack([turned.real, turned.imag], axis=1).reshape(-1)

    def halves(vector: np.ndarray, position: int) -> np.ndarray:
        turned = (vector[:32] + 1j * vector[32:]) * np.exp(1j * position * angles)
        return np.concatenate([turned.real, turned.imag])

    theirs = adjacent(q @ x, 11) @ adjacent(k @ y, 4)
    ours = halves(unpermute(q, 1) @ x, 11) @ halves(unpermute(k, 1) @ y, 4)
    assert ours == pytest.approx(theirs, rel=1e-6)
    wrong = halves(q @ x, 11) @ halves(k @ y, 4)
    assert wrong != pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("name", ["output.weight", "blk.0.attn_q.bias", "blk.0.attn_z.weight"])
def test_unknown_tensor_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown tensor '{name}'"):
        hugging_face_name(name)


def test_failing_write_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"missing/model\.safetensors"):
        write_tensors(tmp_path / "missing" / "model.safetensors", {"a": torch.zeros(1)})


def test_config(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    expected = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
    assert {name: config[name] for name in expected} == expected
    assert "quantization_config" not in config
    generation = json.loads((converted / "generation_config.json").read_text())
    assert generation == {
        "do_sample": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
    }
