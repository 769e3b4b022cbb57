"""What runs a product of few rows: torch's own or one of ours, whichever was measured to be faster.

Measuring happens ahead of time only, for products that somebody names, outside of any capture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jetflow_kernels.ops import linear_store
from jetflow_kernels.ops.linear import room_for
from jetflow_kernels.ops.linear_measure import TORCH, Timed, measure
from jetflow_kernels.ops.linear_plan import MOST_ROWS, Config, configs_for
from jetflow_kernels.ops.streamed.variants import streamed_for

MEMORY_RATES = {"H200": 4.26e12}
"""Bytes a second that a device was measured to read, by what its name holds."""
_ROOM = 2**17
"""Counters that all products of a device share; one that needs more stays torch's."""
_TYPES = (torch.bfloat16, torch.float16)
"""What is measured: exact products of float32 stay torch's."""


@dataclass(frozen=True, slots=True, order=True)
class Product:
    """A product's shapes."""

    rows: int
    outs: int
    """Rows of the matrix: both halves, if ``gated``."""
    ins: int
    gated: bool

    def bytes(self, dtype: torch.dtype) -> int:
        """What has to be read and written."""
        written = self.outs // 2 if self.gated else self.outs
        numbers = self.outs * self.ins + self.rows * (self.ins + written)
        return numbers * dtype.itemsize

    def configs(self, dtype: torch.dtype) -> dict[str, Config]:
        """Ours that can run it, by name."""
        if room_for([(self.rows, self.outs)]) > _ROOM:
            return {}
        written = configs_for(self.rows, dtype, gated=self.gated)
        return {str(each): each for each in (*written, *streamed_for(self.rows, dtype))}


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs a product, and what each that could takes."""

    product: Product
    config: Config | None
    """None: torch."""
    timed: Timed

    @classmethod
    def of(cls, product: Product, configs: Mapping[str, Config], timed: Timed) -> Choice:
        """The fastest; torch among equals."""
        best = min((TORCH, *configs), key=lambda name: timed.us.get(name, math.inf))
        return cls(product, configs.get(best), timed)

    @property
    def runs(self) -> str:
        """The name of what runs it."""
        return TORCH if self.config is None else str(self.config)

    def line(self) -> dict[str, Any]:
        """As plain JSON, to be stored."""
        shape = self.product
        return {
            "rows": shape.rows, "out": shape.outs, "in": shape.ins, "gated": shape.gated,
            "runs": self.runs, "us": self.timed.us, "refused": self.timed.refused,
        }  # fmt: skip

    @classmethod
    def of_line(cls, line: dict[str, Any], dtype: torch.dtype) -> Choice | None:
        """The choice that a stored line tells; None if it is none that would be made here."""
        try:
            product = Product(line["rows"], line["out"], line["in"], line["gated"])
            timed = Timed(
                {str(name): float(value) for name, value in line["us"].items()},
                {str(name): str(value) for name, value in line["refused"].items()},
            )
            configs = product.configs(dtype)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        if {*timed.us, *timed.refused} != {TORCH, *configs} or TORCH not in timed.us:
            return None
        if not all(0 < value < math.inf for value in timed.us.values()):
            return None
        choice = cls.of(product, configs, timed)
        return choice if choice.runs == line.get("runs") else None


@dataclass(slots=True, eq=False)
class Products:
    """The choices of one process.

    All products of a device share their counters, so they may run on one stream at a time.

    Args:
        folder: of the cache files; None: ``products`` in the user's cache folder.
    """

    folder: Path | None = None
    _choices: dict[tuple[torch.device, torch.dtype, Product], Choice] = field(default_factory=dict)
    _arrived: dict[torch.device, Tensor] = field(default_factory=dict)

    def prepare(
        self, rows: Sequence[int], weights: Sequence[Tensor], gated: Sequence[Tensor] = ()
    ) -> None:
        """Finds out what is fastest for every number of rows with every matrix, unless it is known.

        Numbers of rows above 256, float32 and matrices that are not on a CUDA device of capability
        9.0 or later are passed over: those products are torch's.

        Args:
            rows: of the products that will come.
            weights: [out, in] each, contiguous.
            gated: [2 I, in] each, contiguous, of gated products.

        Raises:
            RuntimeError: something is to be measured while a CUDA graph is captured.
        """
        counts = sorted({count for count in rows if 1 <= count <= MOST_ROWS})
        for is_gated, matrices in ((False, weights), (True, gated)):
            for alike in _alike(matrices):
                self._prepare_alike(counts, alike, is_gated)

    def choice(self, x: Tensor, weight: Tensor, *, gated: bool) -> tuple[Config, Tensor] | None:
        """The configuration and the counters for a product; None: it is torch's.

        Args:
            x: [T, in].
            weight: [out, in].
            gated: whether the result is gated.
        """
        product = Product(x.shape[0], weight.shape[0], weight.shape[1], gated)
        found = self._choices.get((weight.device, weight.dtype, product))
        if found is None or found.config is None:
            return None
        return found.config, self._arrived[weight.device]

    def table(self) -> list[dict[str, Any]]:
        """All choices, for reports: who runs what, microseconds, and the share of memory's rate."""
        lines = []
        for (device, dtype, product), choice in sorted(
            self._choices.items(), key=lambda item: (str(item[0][:2]), item[0][2])
        ):
            us, rate = choice.timed.us[choice.runs], memory_rate(device)
            per_second = product.bytes(dtype) / us * 1e6
            lines.append({
                **choice.line(), "dtype": str(dtype).removeprefix("torch."),
                "chosen_us": us, "torch_us": choice.timed.us[TORCH],
                "bytes_per_second": per_second,
                "share_of_memory_rate": None if rate is None else per_second / rate,
            })  # fmt: skip
        return lines

    def _prepare_alike(self, counts: Sequence[int], weights: list[Tensor], gated: bool) -> None:
        first = weights[0]
        device, dtype = first.device, first.dtype
        place = device, dtype
        wanted = [Product(count, first.shape[0], first.shape[1], gated) for count in counts]
        if not _ours(first) or all((*place, product) in self._choices for product in wanted):
            return
        key = linear_store.key_of(device, dtype)
        file = linear_store.file_of(key, self.folder)
        for line in linear_store.stored(file, key):
            choice = Choice.of_line(line, dtype)
            if choice is not None:
                self._choices.setdefault((*place, choice.product), choice)
        if device not in self._arrived:
            self._arrived[device] = torch.zeros(_ROOM, dtype=torch.int32, device=device)
        missing = [product for product in wanted if (*place, product) not in self._choices]
        if not missing:
            return
        if first.is_cuda and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("products are measured before anything is captured, not meanwhile")
        given = [(product.rows, list(product.configs(dtype).values())) for product in missing]
        found = measure(given, weights, gated=gated, arrived=self._arrived[device])
        for product, timed in zip(missing, found, strict=True):
            self._choices[(*place, product)] = Choice.of(product, product.configs(dtype), timed)
        mine = [choice for each, choice in self._choices.items() if each[:2] == place]
        linear_store.store(file, key, [choice.line() for choice in mine])


def memory_rate(device: torch.device) -> float | None:
    """Bytes a second that the device was measured to read; None: it was not."""
    name = torch.cuda.get_device_name(device)
    return next((rate for part, rate in MEMORY_RATES.items() if part in name), None)


def _ours(weight: Tensor) -> bool:
    """Whether products with a matrix may be other than torch's."""
    return (
        weight.is_cuda
        and weight.dtype in _TYPES
        and weight.is_contiguous()
        and torch.cuda.get_device_capability(weight.device) >= (9, 0)
    )


def _alike(weights: Sequence[Tensor]) -> list[list[Tensor]]:
    """The matrices by shape, type and device."""
    found: dict[tuple[Any, ...], list[Tensor]] = {}
    for weight in weights:
        found.setdefault((weight.shape, weight.dtype, weight.device), []).append(weight)
    return list(found.values())
