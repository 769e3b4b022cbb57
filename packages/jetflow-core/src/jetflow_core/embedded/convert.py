"""Turns the GGUF file into a Hugging Face folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from safetensors import SafetensorError
from safetensors.torch import save_file

from jetflow_core.embedded.locate import Report, verify_gguf
from jetflow_core.embedded.tokenizer import build_tokenizer, tokenizer_settings
from jetflow_core.embedded.weights import state_dict

Metadata = Mapping[str, Any]
"""The key-value pairs of a GGUF file, as Python values."""


def convert(source: Path, folder: Path, report: Report) -> None:
    """Fills `folder` with the model of `source`: bf16 weights, configuration, tokenizer.

    Args:
        source: The GGUF file; it must be the known one.
        folder: An existing empty folder.
        report: Called with one line of text a step.

    Raises:
        EmbeddedTargetError: The file is not the known one.
        OSError: The folder cannot be written.
    """
    report(f"checking {source.name}")
    verify_gguf(source)
    report("reading the GGUF file (converted once, about 10 s in all)")
    write_folder(GGUFReader(str(source)), folder, report)


def write_folder(reader: GGUFReader, folder: Path, report: Report) -> None:
    """Fills `folder` with the model of an open GGUF file, whatever its checksum."""
    metadata = read_metadata(reader)
    report(f"de-quantising {len(reader.tensors)} tensors to bf16")
    tensors = state_dict(
        reader,
        heads=metadata["llama.attention.head_count"],
        kv_heads=metadata["llama.attention.head_count_kv"],
    )
    write_tensors(folder / "model.safetensors", tensors)
    report("writing the configuration and the tokenizer")
    _write_json(folder / "config.json", model_config(metadata))
    # safetensors makes its file private to the user; a cache may be shared.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    _write_json(folder / "generation_config.json", generation_config(metadata))
    tokenizer = build_tokenizer(metadata).to_str(pretty=True)
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", tokenizer_settings(metadata))


def read_metadata(reader: GGUFReader) -> Metadata:
    """Returns the key-value pairs of an open GGUF file as Python values."""
    return {name: field.contents() for name, field in reader.fields.items()}


def model_config(metadata: Metadata) -> dict[str, Any]:
    """Returns the content of `config.json`."""
    heads = metadata["llama.attention.head_count"]
    hidden = metadata["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": metadata["llama.vocab_size"],
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": _decimal(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": _decimal(metadata["llama.rope.freq_base"]),
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        **_special_ids(metadata),
    }


def generation_config(metadata: Metadata) -> dict[str, Any]:
    """Returns the content of `generation_config.json`: the special ids, greedy by default."""
    return {"do_sample": False, **_special_ids(metadata)}


def _special_ids(metadata: Metadata) -> dict[str, int]:
    return {
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata["tokenizer.ggml.padding_token_id"],
    }


def _decimal(value: float) -> float:
    # The file holds float32: its shortest decimal is the number that was meant (1e-05, not
    # 9.999999747378752e-06).
    return float(str(np.float32(value)))


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Writes a safetensors file.

    Raises:
        OSError: It cannot be written.
    """
    try:
        # The format entry is what transformers asks of a safetensors file.
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        # A full disk should look the same whoever was writing.
        raise OSError(f"{path}: {error}") from error


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
