"""The only place that reads transformers folders: no code of theirs runs, one line says why not."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from jetflow_core.support import UnsupportedTargetError

_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings",
)  # fmt: skip
_ABOVE_ALL_LEVELS = 100


class TargetLoadError(ValueError):
    """A target cannot be loaded; the message names its folder and the first cause, in one line."""


def load_config(source: str | Path) -> Any:
    """The transformers config of a target, without its weights.

    Args:
        source: Folder of a checkpoint, or its name on the hub.

    Raises:
        TargetLoadError: No config there, it cannot be read, or it asks to run code of its own.
    """
    _check_folder(str(source))
    with one_line(source):
        # False, not left out: transformers would ask on the terminal whether to run that code.
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False)
        _refuse_code(getattr(config, "auto_map", None), "config.json")
    return config


def load_model(source: str | Path, config: Any, *, dtype: Any, attention: str | None = None) -> Any:
    """The transformers causal LM of a target, on the CPU, with every one of its weights.

    Args:
        source: As in `load_config`.
        config: What `load_config` gave.
        dtype: The torch type of its weights.
        attention: Name of an attention implementation; None: transformers' choice.

    Raises:
        TargetLoadError: Its sizes are none, or the weights cannot be read, are of other shapes
            than the config says, lack tensors or hold too many.
    """
    with one_line(source):
        check_sizes(config)
        chosen = {} if attention is None else {"attn_implementation": attention}
        model, report = AutoModelForCausalLM.from_pretrained(
            str(source),
            config=config,
            dtype=dtype,
            trust_remote_code=False,
            output_loading_info=True,
            # Refused below by name; transformers' own text names no tensor in its first line.
            ignore_mismatched_sizes=True,
            **chosen,
        )
        _check_end_tokens(model)
    _check_tensors(str(source), report)
    return model


def load_tokenizer(source: str | Path) -> Any:
    """The transformers tokenizer of a target; a chat template that it has was tried once.

    Raises:
        TargetLoadError: It cannot be read, asks to run code of its own, or its chat template
            fails.
    """
    with one_line(source, "the tokenizer of a target"):
        tokenizer = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
        _refuse_code(tokenizer.init_kwargs.get("auto_map"), "tokenizer_config.json")
        tokenizer.encode("a")
        if tokenizer.chat_template:
            _try_template(tokenizer)
    return tokenizer


def check_sizes(config: Any) -> None:
    """Refuses a config whose sizes are no whole numbers above 0.

    Raises:
        ValueError: Naming the field and its value.
    """
    for name in _SIZES:
        value = getattr(config, name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"its config says {name} {value!r}, expected a whole number above 0")


def _refuse_code(auto_map: Any, file: str) -> None:
    if auto_map:
        raise ValueError(f"its {file} asks to run code of its own (auto_map), which is never done")


def _try_template(tokenizer: Any) -> None:
    message = [{"role": "user", "content": "a"}]
    try:
        tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    except Exception as error:
        raise ValueError(f"its chat template fails: {first_line(error)}") from error


def _check_end_tokens(model: Any) -> None:
    for config in (model.config, model.generation_config):
        found = getattr(config, "eos_token_id", None)
        for token in found if isinstance(found, list | tuple) else [found]:
            if token is not None and (isinstance(token, bool) or not isinstance(token, int)):
                raise ValueError(f"its end-of-sequence id {token!r} is no token id")


def _check_tensors(source: str, report: Mapping[str, Any]) -> None:
    wrong = (
        ("lacks {} tensors of its model, {} for one", sorted(report["missing_keys"])),
        ("has {} tensors of other shapes than its config says, {} for one",
         sorted(str(entry[0]) for entry in report["mismatched_keys"])),
        ("holds {} tensors that its model does not have, {} for one",
         sorted(report["unexpected_keys"])),
    )  # fmt: skip
    for text, names in wrong:
        if names:
            raise TargetLoadError(f"the checkpoint {source!r} {text.format(len(names), names[0])}")


def _check_folder(source: str) -> None:
    path = Path(source)
    try:
        is_path = path.is_absolute() or source.startswith(".") or path.exists()
        missing = is_path and not (path / "config.json").is_file()
    except (OSError, ValueError) as error:
        raise TargetLoadError(_told(source, "a target", first_line(error))) from error
    # transformers would take the path for a name on the hub, and complain about its spelling.
    if missing:
        raise TargetLoadError(_told(source, "a target", "no config.json there"))


@contextmanager
def one_line(source: str | Path, what: str = "a target") -> Iterator[None]:
    """Nothing is printed meanwhile, and whatever fails becomes one line.

    A checkpoint is a stranger's file: what transformers raises for a broken one is no fault of
    the program, whatever its type.

    Raises:
        TargetLoadError: Something failed; no memory left, and UnsupportedTargetError, stay as
            they are.
    """
    try:
        with _quiet():
            yield
    except (MemoryError, TargetLoadError, UnsupportedTargetError):
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        raise TargetLoadError(_told(str(source), what, first_line(error))) from error


def _told(source: str, what: str, cause: str) -> str:
    return f"cannot load {what} from {source!r}: {cause}"


def first_line(error: BaseException) -> str:
    """The first line of what an error says, with its type where the text alone says little."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return "the name is too long"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else ""
    return (
        text
        if isinstance(error, OSError | ValueError) and text
        else (f"{type(error).__name__}: {text}" if text else type(error).__name__)
    )


@contextmanager
def _quiet() -> Iterator[None]:
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(_ABOVE_ALL_LEVELS)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
