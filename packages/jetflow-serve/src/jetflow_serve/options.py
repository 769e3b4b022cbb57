"""What a user may say about trees, in vLLM's own free dictionary: ``additional_config["jetflow"]``.

vLLM refuses unknown keys in its speculative configuration, so trees are described here; how many
nodes are drafted is vLLM's own ``num_speculative_tokens``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

SECTION = "jetflow"
MODES = ("tree", "chain")
MOST_ROWS = 4096
AUTO = "auto"
"""The budget that is chosen every step."""


class OptionError(ValueError):
    """An option of the ``jetflow`` section is unknown or out of range; the message names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """How requests are drafted for.

    Raises:
        OptionError: on construction, naming the option, its value and the allowed range.
    """

    mode: str = "tree"
    """"tree": exact best-first trees; "chain": the head's best path, one node a depth."""
    budget: int | str | None = None
    """Rows of one verify pass, root included; None: ``num_speculative_tokens`` + 1. It is there
    for those who think in rows, and must agree with ``num_speculative_tokens``. "auto": rows of
    every step are chosen for its whole batch, no tree having more than that."""
    depth: int | None = None
    """Deepest depth that is drafted; None: as deep as the head goes."""
    max_children: int | None = None
    """Most children of one node; None: as many as the head has candidates."""

    audit: float = 0.0
    """Share of finished requests that is decoded again without speculation, 0 to 1."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise OptionError(f"mode is one of {', '.join(MODES)}; got {self.mode!r}")
        shares = isinstance(self.audit, int | float) and not isinstance(self.audit, bool)
        if not shares or not 0 <= self.audit <= 1:
            raise OptionError(f"audit is a share from 0 to 1; got {self.audit!r}")
        for name, most in (("budget", MOST_ROWS), ("depth", 1024), ("max_children", 1024)):
            value = getattr(self, name)
            if value is None or (name == "budget" and value == AUTO):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                auto = ' or "auto"' if name == "budget" else ""
                raise OptionError(
                    f"{name} must be a whole number from 1 to {most}{auto}; got {value!r}"
                )


def read_options(additional_config: object) -> ServeOptions:
    """The options in ``additional_config``; the defaults where it has no ``jetflow`` section.

    Raises:
        OptionError: the section is no mapping, or holds an unknown key or a wrong value.
    """
    section = additional_config.get(SECTION) if isinstance(additional_config, Mapping) else None
    if section is None:
        return ServeOptions()
    if not isinstance(section, Mapping):
        raise OptionError(f"additional_config[{SECTION!r}] must be a mapping; got {section!r}")
    known = [field.name for field in fields(ServeOptions)]
    unknown = sorted(str(key) for key in section if key not in known)
    if unknown:
        raise OptionError(
            f"additional_config[{SECTION!r}] has unknown keys {', '.join(unknown)}; "
            f"known are {', '.join(known)}"
        )
    given: dict[str, Any] = {str(key): value for key, value in section.items()}
    return ServeOptions(**given)
