"""What a target's own generation config asks for and requests here do not start from."""

from __future__ import annotations

from typing import Any

# Special tokens, which are honoured, and what changes no token.
_HARMLESS = {
    "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "use_cache",
    "cache_implementation", "cache_config", "return_dict_in_generate", "output_attentions",
    "output_hidden_states", "output_logits", "output_scores", "transformers_version",
    "num_return_sequences", "compile_config", "disable_compile",
}  # fmt: skip
_SAMPLING = {
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
}  # fmt: skip
_NEUTRAL = {
    "num_beams": 1, "num_beam_groups": 1, "repetition_penalty": 1.0, "length_penalty": 1.0,
    "encoder_repetition_penalty": 1.0, "guidance_scale": 1.0,
}  # fmt: skip


def unused_defaults(config: Any) -> dict[str, Any]:
    """The fields of a transformers GenerationConfig that would change an answer, with their values.

    Requests here start from the defaults of `SamplingParams`, whatever the target; of this config
    only the end-of-sequence ids count.

    Args:
        config: the config, or None.
    """
    if config is None:
        return {}
    asked = {
        name: value
        for name, value in config.to_diff_dict().items()
        if value and not name.startswith("_") and name not in _HARMLESS
        and value != _NEUTRAL.get(name)
    }  # fmt: skip
    if not asked.get("do_sample"):
        asked = {name: value for name, value in asked.items() if name not in _SAMPLING}
    return dict(sorted(asked.items()))
