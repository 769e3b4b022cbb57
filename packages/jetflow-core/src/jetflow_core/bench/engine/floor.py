"""The least time that a round can take: what it has to read and multiply."""

from __future__ import annotations

from dataclasses import dataclass

from jetflow_core.bench.engine.settings import EngineSettings
from jetflow_core.bench.engine.subjects import Subject
from jetflow_core.stacks import PassTraffic, bytes_per_pass

BANDWIDTH, FLOPS = 4.26e12, 7.9e14
"""Of an H200: bytes a second of a copy, bfloat16 multiplications and additions a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """How fast a device is told to be."""

    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """What one round has to do."""

    target: PassTraffic
    head: PassTraffic | None

    def seconds(self, device: Device) -> float:
        """The least time: the head comes before the target."""
        parts = [part for part in (self.head, self.target) if part is not None]
        return sum(
            part.floor(
                bytes_per_second=device.bytes_per_second, flops_per_second=device.flops_per_second
            )
            for part in parts
        )


def told_device(settings: EngineSettings) -> Device | None:
    """The device of the floor; None where nobody said how fast it is."""
    if not settings.device.startswith("cuda") and settings.bandwidth is None:
        return None
    return Device(
        bytes_per_second=settings.bandwidth or BANDWIDTH, flops_per_second=settings.flops or FLOPS
    )


def floor_of(subject: Subject, *, rows: int, context: int, requests: int, plain: bool) -> Floor:
    """What a round of some requests has to do.

    Args:
        subject: target and head.
        rows: rows of each tree.
        context: committed rows of each request.
        requests: how many there are.
        plain: no head takes part.
    """
    stack = subject.stack
    target = bytes_per_pass(
        stack.shape,
        rows=rows,
        context=context,
        requests=requests,
        element_bytes=stack.dtype.itemsize,
    )
    head = None if plain else _head_traffic(subject, context=context, requests=requests)
    return Floor(target=target, head=head)


def _head_traffic(subject: Subject, *, context: int, requests: int) -> PassTraffic | None:
    """All weights of the head once, the output matrix once more, and its keys and values."""
    if subject.head is None:
        return None
    head, stack = subject.head.head, subject.stack
    config, size = head.config, stack.dtype.itemsize
    slots = head.num_slots(subject.depth)
    weights = sum(parameter.numel() for parameter in head.parameters())
    output = stack.vocab_size * stack.hidden_size
    seen = context + slots
    kv_width, q_width = config.num_kv_heads * config.head_dim, config.num_heads * config.head_dim
    return PassTraffic(
        weight_bytes=size * (weights + output),
        cache_bytes=size * requests * config.num_layers * 2 * kv_width * seen,
        weight_flops=2.0 * requests * slots * (weights + output),
        cache_flops=2.0 * requests * config.num_layers * slots * 2 * q_width * seen,
    )
