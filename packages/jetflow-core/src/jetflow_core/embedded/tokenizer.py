"""The tokenizer of the embedded target, built from the vocabulary in the GGUF file.

Built by hand because the pre-tokenizer has to split digits one by one before the byte-level rule
sees them: without that, digits after blank lines or indentation get other ids than the model was
trained on, and generated ids no longer equal their re-tokenised text.

The vocabulary has no token for 21 byte values (some control characters, and bytes that start
rare or invalid UTF-8 sequences): text made of those is dropped, as the model's own tokenizer does.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_CONTROL = 3  # GGUF's token type of special tokens


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Returns the tokenizer; it adds no special token by itself.

    Raises:
        ValueError: The file asks for another kind of tokenizer.
    """
    kind = (metadata["tokenizer.ggml.model"], metadata["tokenizer.ggml.pre"])
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"the GGUF file's tokenizer is {kind}, expected ('gpt2', 'smollm')")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind == _CONTROL
        ]
    )
    return tokenizer


def tokenizer_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `tokenizer_config.json`, chat template included."""
    tokens = metadata["tokenizer.ggml.tokens"]

    def special(name: str) -> str:
        return str(tokens[metadata[f"tokenizer.ggml.{name}_token_id"]])

    return {
        # The generic class takes tokenizer.json as it is; a model's own class would rebuild it
        # and lose the digit splitter.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special("bos"),
        "eos_token": special("eos"),
        "pad_token": special("padding"),
        "unk_token": special("unknown"),
        "model_max_length": metadata["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right
