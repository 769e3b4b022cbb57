"""Plain decoding of many rows side by side, each over a contiguous cache of its own."""

from jetflow_kernels.rows.backend import attend_rows
from jetflow_kernels.rows.op import row_attention
from jetflow_kernels.rows.reference import row_attention_reference

__all__ = ["attend_rows", "row_attention", "row_attention_reference"]
