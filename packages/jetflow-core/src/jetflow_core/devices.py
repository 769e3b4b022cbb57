"""Names of devices: which ones there are, and whether this machine has them."""

from __future__ import annotations

import re


def check_device_name(name: str) -> None:
    """Refuses a name that is not cpu, cuda or cuda:N; imports nothing heavy.

    Raises:
        ValueError: naming it and what is allowed.
    """
    if re.fullmatch(r"cpu|cuda(:[0-9]{1,4})?", name) is None:
        shown = name if len(name) <= 40 else f"{name[:37]}..."
        raise ValueError(f"device {shown!r} cannot be used here: cpu, cuda or cuda:N")


def check_device(name: str) -> None:
    """Refuses a device that is not here.

    Raises:
        ValueError: no such name, or no such device on this machine.
    """
    check_device_name(name)
    if name == "cpu":
        return
    # Here and not above: what only checks a name, or times the builders, runs without torch.
    import torch

    if not torch.cuda.is_available():
        raise ValueError(f"device {name!r} cannot be used here: torch finds no CUDA device")
    number, count = int(name.partition(":")[2] or 0), torch.cuda.device_count()
    if number >= count:
        raise ValueError(
            f"device {name!r} cannot be used here: this machine has {count}, from cuda:0"
        )
