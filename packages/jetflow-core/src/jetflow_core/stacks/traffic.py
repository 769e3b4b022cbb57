"""What a pass of a stack has to read and multiply: the floor under its time on any device."""

from __future__ import annotations

from dataclasses import dataclass

from jetflow_core.stacks.shape import StackShape


@dataclass(frozen=True, kw_only=True, slots=True)
class PassTraffic:
    """Bytes and multiplications of one pass.

    Weights count as read once, keys and values of a request once for all its rows. What stays
    near the processors does not count: hidden states, logits, tables.
    """

    weight_bytes: float
    """Of all weights that the pass reads; with experts an expectation."""
    cache_bytes: float
    """Of keys and values, read and written."""
    weight_flops: float
    """Of the products with weights, a multiplication and an addition counted as two."""
    cache_flops: float
    """Of the attention, likewise."""

    @property
    def bytes(self) -> float:
        """Everything that is read or written."""
        return self.weight_bytes + self.cache_bytes

    def floor(self, *, bytes_per_second: float, flops_per_second: float) -> float:
        """The least seconds that a pass can take on a device.

        Reading and multiplying overlap within the products and within the attention, but the one
        waits for the other.

        Raises:
            ValueError: a speed is not above 0.
        """
        for name, speed in (
            ("bytes_per_second", bytes_per_second),
            ("flops_per_second", flops_per_second),
        ):
            if not speed > 0:
                raise ValueError(f"{name} is {speed}, it must be above 0")
        return sum(
            max(size / bytes_per_second, flops / flops_per_second)
            for size, flops in (
                (self.weight_bytes, self.weight_flops),
                (self.cache_bytes, self.cache_flops),
            )
        )


def bytes_per_pass(
    shape: StackShape, *, rows: int, context: int, requests: int = 1, element_bytes: int = 2
) -> PassTraffic:
    """What a pass over some requests of one size has to read and multiply.

    Args:
        shape: Of the stack.
        rows: Rows of each request.
        context: Committed rows of each request.
        requests: How many there are.
        element_bytes: Bytes of a weight, a key or a value.

    Returns:
        An expectation where rows choose experts: each is taken to choose on its own and all
        experts to be equally likely. Rows of real text choose alike, so it is an upper bound.

    Raises:
        ValueError: a number is out of range.

    Examples:
        >>> from jetflow_core.stacks import named_shape
        >>> round(bytes_per_pass(named_shape("qwen3-8b"), rows=1, context=0).weight_bytes / 1e9, 2)
        15.14
    """
    for name, value, least in (
        ("rows", rows, 1), ("context", context, 0), ("requests", requests, 1),
        ("element_bytes", element_bytes, 1),
    ):  # fmt: skip
        if value < least:
            raise ValueError(f"{name} is {value}, it must be at least {least}")
    total = rows * requests
    layers = range(shape.num_layers)
    read = sum(_layer_weights(shape, layer, _touched(shape, layer, total)) for layer in layers)
    used = sum(_layer_weights(shape, layer, _chosen(shape, layer)) for layer in layers)
    output = shape.vocab_size * shape.hidden_size
    # The rows of the embedding that are looked up are read too; if it is tied, with the output.
    embedded = 0 if shape.tied else total * shape.hidden_size
    seen = context + rows
    return PassTraffic(
        weight_bytes=element_bytes * (read + output + embedded + shape.hidden_size),
        cache_bytes=element_bytes * requests * shape.num_layers * 2 * shape.kv_width * seen,
        weight_flops=2.0 * total * (used + output),
        cache_flops=2.0 * requests * shape.num_layers * rows * 2 * shape.q_width * seen,
    )


def _layer_weights(shape: StackShape, layer: int, experts: float) -> float:
    """Weights of a layer with so many of its experts."""
    hidden, width = shape.hidden_size, shape.q_width + 2 * shape.kv_width
    attention = hidden * (width + shape.q_width)
    small = 2 * hidden + 2 * shape.head_dim * shape.head_norms
    small += width * shape.qkv_bias + hidden * shape.output_bias
    of_layer = shape.experts_of(layer)
    if of_layer is None:
        return attention + small + 3 * hidden * shape.intermediate_size
    mlp = experts * 3 * hidden * of_layer.intermediate_size
    return attention + small + mlp + of_layer.count * hidden


def _chosen(shape: StackShape, layer: int) -> float:
    """Experts that a row goes through."""
    experts = shape.experts_of(layer)
    return 0.0 if experts is None else float(experts.chosen)


def _touched(shape: StackShape, layer: int, rows: int) -> float:
    """Experts that at least one of the rows is expected to choose."""
    experts = shape.experts_of(layer)
    if experts is None:
        return 0.0
    missed: float = (1.0 - experts.chosen / experts.count) ** rows
    return experts.count * (1.0 - missed)
