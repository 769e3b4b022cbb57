"""The tensors of a Llama GGUF file under their Hugging Face names."""

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

_OUTSIDE_LAYERS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hugging_face_name(name: str) -> str:
    """Returns the Hugging Face name of a GGUF tensor.

    Raises:
        ValueError: The name belongs to no tensor of a Llama with tied embeddings.
    """
    if name in _OUTSIDE_LAYERS:
        return _OUTSIDE_LAYERS[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _IN_LAYER or parts[3] != "weight":
        raise ValueError(f"unknown tensor {name!r} in the GGUF file")
    return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.weight"


def unpermute(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Returns q or k projection rows in the order of Hugging Face.

    GGUF stores the two rows that the rotary embedding turns together next to each other; Hugging
    Face keeps all first partners of a head before all second ones.

    Args:
        rows: Weights [heads * head_dim, hidden] in GGUF order.
        heads: Number of heads that the rows belong to.
    """
    pairs = rows.reshape(heads, -1, 2, rows.shape[1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def state_dict(reader: GGUFReader, *, heads: int, kv_heads: int) -> dict[str, torch.Tensor]:
    """Returns every tensor of the file, de-quantised and rounded to bf16, on the CPU."""
    head_counts = {"attn_q": heads, "attn_k": kv_heads}
    tensors = {}
    for entry in reader.tensors:
        values = dequantize(entry.data, entry.tensor_type)
        kind = entry.name.split(".")[-2]
        if kind in head_counts:
            values = unpermute(values, head_counts[kind])
        # torch.tensor copies: tensors stored as float32 are read-only views of the file.
        tensors[hugging_face_name(entry.name)] = torch.tensor(values).to(torch.bfloat16)
    return tensors
