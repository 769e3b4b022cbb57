"""The options that choose a target and a head, and loading them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from jetflow_core.commands.numbers import Threads
from jetflow_core.devices import check_device, check_device_name

if TYPE_CHECKING:
    import torch

    from jetflow_core.engine import Engine

Report = Callable[[str], None]
"""Takes one line about a step that lasts."""

_GROUP = Group("Models", sort_key=1)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True, slots=True)
class ModelOptions:
    """Which target and head, where, and in which number type."""

    target: Annotated[
        str | None,
        Parameter(help="Folder or hub name of the target; left out: the embedded SmolLM2-135M."),
    ] = None
    head: Annotated[
        str | None,
        Parameter(
            help="Folder of the draft head; left out: the demonstration head with the embedded "
            "target, plain decoding with any other."
        ),
    ] = None
    device: Annotated[
        str, Parameter(help="cpu, cuda or cuda:N; auto: cuda if there is one, else cpu.")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Parameter(help="Number type; auto: the fastest one that is good enough on the device."),
    ] = "auto"
    threads: Threads = None

    def load(self, report: Report) -> Engine:
        """The engine with the chosen target and head.

        Raises:
            ValueError: something does not exist, cannot be loaded or does not fit.
        """
        from jetflow_core.engine import load

        device = self.torch_device()
        self.begin(report)
        report("loading the models")
        return load(self.target, self.head, device=device, dtype=self.torch_dtype())

    def begin(self, report: Report) -> None:
        """Sets threads, and converts the embedded target at its first use.

        Raises:
            ValueError: fewer threads than 1.
        """
        import torch

        if self.threads is not None:
            if self.threads < 1:
                raise ValueError(f"threads {self.threads} is out of range: at least 1")
            torch.set_num_threads(self.threads)
        if self.target is None:
            prepare_default_target(report)

    def check(self) -> None:
        """Refuses names that no machine has, without importing anything heavy.

        Raises:
            ValueError: the device has no such name.
        """
        if self.device != "auto":
            check_device_name(self.device)

    def torch_device(self) -> str:
        """The device's name, checked.

        Raises:
            ValueError: there is no such device, or not on this machine.
        """
        import torch

        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        check_device(self.device)
        return self.device

    def torch_dtype(self) -> torch.dtype | None:
        """The number type; None for auto."""
        import torch

        named = {
            "auto": None,
            "float32": torch.float32,
            "bfloat16": torch.bfloat16,
            "float16": torch.float16,
        }
        return named[self.dtype]


def prepare_default_target(report: Report) -> None:
    """Converts the embedded target if this was never done, and says so in a line on stderr.

    Raises:
        ValueError: it cannot be provided.
    """
    from jetflow_core.embedded import default_cache_dir, embedded_target

    said: list[str] = []

    def tell(line: str) -> None:
        if not said:
            place = default_cache_dir()
            print(f"converting the embedded target, once, into {place}", file=sys.stderr)
        said.append(line)
        report(line)

    embedded_target(report=tell)


def target_name(engine: Engine) -> str:
    """How reports call the engine's target."""
    from pathlib import Path

    from jetflow_core.defaults import is_default_target
    from jetflow_core.embedded import EMBEDDED_NAME

    source = engine.target.tokenizer_source
    if source is None:
        return str(engine.target.config.model_type)
    if is_default_target(source):
        return EMBEDDED_NAME
    return Path(source).name if Path(source).is_dir() else source


def head_name(engine: Engine) -> str | None:
    """How reports call the engine's head; None without one."""
    return engine.head.path.name if engine.head else None


def dtype_name(engine: Engine) -> str:
    """The number type as in ``float32``."""
    return str(engine.target.dtype).removeprefix("torch.")
