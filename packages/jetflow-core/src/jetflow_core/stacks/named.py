"""Shapes by name, as the models' published configs give them: a stack of random weights has one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jetflow_core.stacks.shape import ExpertShape, StackShape

NAMED_SHAPES: Mapping[str, StackShape] = MappingProxyType(
    {
        "qwen3-8b": StackShape(
            vocab_size=151_936,
            hidden_size=4096,
            intermediate_size=12_288,
            num_layers=36,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            max_positions=40_960,
            rope_theta=1e6,
            head_norms=True,
        ),
        "qwen3-30b-a3b": StackShape(
            vocab_size=151_936,
            hidden_size=2048,
            intermediate_size=6144,
            num_layers=48,
            num_heads=32,
            num_kv_heads=4,
            head_dim=128,
            max_positions=40_960,
            rope_theta=1e6,
            head_norms=True,
            experts=ExpertShape(count=128, chosen=8, intermediate_size=768),
        ),
        "smollm2-135m": StackShape(
            vocab_size=49_152,
            hidden_size=576,
            intermediate_size=1536,
            num_layers=30,
            num_heads=9,
            num_kv_heads=3,
            head_dim=64,
            max_positions=8192,
            rope_theta=1e5,
            rms_norm_eps=1e-5,
            tied=True,
        ),
    }
)
"""Every shape that has a name."""


def named_shape(name: str) -> StackShape:
    """The shape called `name`.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name not in NAMED_SHAPES:
        raise ValueError(f"no shape is called {name!r}; there are {', '.join(NAMED_SHAPES)}")
    return NAMED_SHAPES[name]
