"""Which number type a target runs in when nobody says."""

import torch


def default_dtype(device: torch.device | str) -> torch.dtype:
    """The type that is fastest on `device` and good enough for text.

    bfloat16 on a GPU, and on a CPU with bfloat16 tile instructions (AMX). Elsewhere on a CPU
    float32: without them a bfloat16 product over the rows of a tree is several times slower.
    """
    if torch.device(device).type != "cpu":
        return torch.bfloat16
    return torch.bfloat16 if torch.cpu.get_capabilities().get("amx_bf16") else torch.float32
