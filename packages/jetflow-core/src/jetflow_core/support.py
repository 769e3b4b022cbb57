"""Which transformers models can be a target, decided from the config alone."""

from typing import Any

MODEL_TYPES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""Model types that are tested; SmolLM2 is a `llama`."""

_FIXED_ROPE = ("default", "linear", "llama3", "yarn")


class UnsupportedTargetError(ValueError):
    """The model cannot be verified in one pass by this package."""


def check_supported(config: Any) -> None:
    """Refuse, by name, a model that a tree pass would get wrong.

    Args:
        config: A transformers config. No weights are needed.

    Raises:
        UnsupportedTargetError: The model is no decoder, holds layers that cannot be rewound or
            masked, rotates its keys by the length of the text, is quantised, or is of a type
            that was never tested.
    """
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedTargetError(f"{name} is an encoder-decoder; a target is a decoder alone")
    _check_layers(config)
    if name not in MODEL_TYPES:
        raise UnsupportedTargetError(
            f"model type {name!r} is not supported; supported are {', '.join(MODEL_TYPES)}"
        )
    _check_window(config)
    _check_rope(config)
    if getattr(config, "quantization_config", None) is not None:
        raise UnsupportedTargetError(
            f"this {name} checkpoint is quantised; load it in bfloat16, float16 or float32"
        )


def _check_layers(config: Any) -> None:
    for attribute in ("layer_types", "layers_block_type", "block_types"):
        for index, kind in enumerate(getattr(config, attribute, None) or ()):
            if kind not in ("full_attention", "attention"):
                raise UnsupportedTargetError(
                    f"layer {index} of this {config.model_type} model is of type {kind!r}, which "
                    "cannot be rewound or masked for a tree; only 'full_attention' layers can"
                )


def _check_window(config: Any) -> None:
    window = getattr(config, "sliding_window", None)
    if window is not None and getattr(config, "use_sliding_window", True):
        raise UnsupportedTargetError(
            f"this {config.model_type} model attends over a sliding window of {window} tokens; "
            "only full attention is supported"
        )


def _check_rope(config: Any) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in _FIXED_ROPE:
        raise UnsupportedTargetError(
            f"rope type {kind!r} is not supported: cached keys must not depend on the length of "
            f"the text; supported are {', '.join(_FIXED_ROPE)}"
        )
