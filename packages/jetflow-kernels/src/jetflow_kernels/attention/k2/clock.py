"""Builds that note the time: when each program of a launch reaches the phases of ``clock.cuh``."""

from __future__ import annotations

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from jetflow_kernels.attention.k2 import build, launch
from jetflow_kernels.attention.k2.configurations import Configuration
from jetflow_kernels.attention.k2.parameters import Params
from jetflow_kernels.nvcc import cache_folder

MACRO = "KERNEL_CLOCK"


class ClockedParams(Params):
    """``Params`` of ``params.cuh`` in a build that notes the time."""

    _fields_: ClassVar = [("stamps", ctypes.c_void_p)]


@cache
def phases() -> tuple[str, ...]:
    """The names of ``Phase`` in ``clock.cuh``, in their order."""
    return parse_phases((Path(__file__).parent / "clock.cuh").read_text(encoding="utf-8"))


def parse_phases(source: str) -> tuple[str, ...]:
    """The names of the enum ``Phase`` up to ``PHASES``, which counts them.

    Raises:
        ValueError: there is no such enum, or it is not counted.
    """
    found = re.search(r"enum Phase \{(.*?)\};", source, re.DOTALL)
    names = re.findall(r"\w+", re.sub(r"//.*", "", found[1])) if found else []
    if not names or names[-1] != "PHASES":
        raise ValueError("the source has no enum Phase that ends with PHASES")
    return tuple(names[:-1])


@cache
def cubin(variant: Configuration) -> bytes:
    """The machine code that notes the time, compiled now where no build is kept.

    Raises:
        BuildError: there is no compiler, or it failed; the message says what it said.
    """
    return build.build(cache_folder(), variant, (MACRO,)).read_bytes()


def room(call: launch.Call) -> Tensor:
    """[programs, phases] int64 of zeros on the device of a call."""
    return torch.zeros(call.programs, len(phases()), dtype=torch.int64, device=call.device)


def start(call: launch.Call, stamps: Tensor, *, early: bool) -> None:
    """``launch.start`` of a build that notes the time.

    Args:
        call: made by ``launch.prepare``.
        stamps: made by ``room``; written. A phase that a program does not reach keeps what it had.
        early: as in ``launch.launch``.

    Raises:
        BuildError: the kernel could not be built.
        DriverError: the CUDA driver refused.
    """
    parameters = clocked(call.parameters, stamps.data_ptr())
    launch.start(call, cubin(call.variant), early=early, parameters=parameters)


def clocked(parameters: Params, stamps: int) -> ClockedParams:
    """A copy of parameters, with the address of the stamps."""
    made = ClockedParams(stamps=stamps)
    ctypes.memmove(ctypes.addressof(made), ctypes.addressof(parameters), ctypes.sizeof(parameters))
    return made
