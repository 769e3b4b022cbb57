"""Settings as TOML; reading it is in Python's own library, writing is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def to_toml(values: Mapping[str, Any]) -> str:
    """One line a key: text, paths, numbers, truth values, and lists of them.

    Raises:
        TypeError: a value of another kind.
    """
    return "".join(f"{_text(name)} = {_value(value)}\n" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        return _text(str(value), quoted=True)
    raise TypeError(f"settings hold no {type(value).__name__}")


def _text(text: str, *, quoted: bool = False) -> str:
    bare = text.isascii() and text.replace("-", "").replace("_", "").isalnum()
    if bare and not quoted:
        return text
    # JSON escapes what TOML does, but for one control character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
