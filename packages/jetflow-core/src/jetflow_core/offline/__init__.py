"""Many prompts answered by plain decoding, as fast as the device goes: text to train a head on."""

from jetflow_core.offline.attention import MaskedAttention, RowAttention
from jetflow_core.offline.backends import RowBackend, row_attention_for
from jetflow_core.offline.decoder import RowDecoder
from jetflow_core.offline.jobs import Answer, Job
from jetflow_core.offline.stack import Rope, Stack

__all__ = [
    "Answer",
    "Job",
    "MaskedAttention",
    "Rope",
    "RowAttention",
    "RowBackend",
    "RowDecoder",
    "Stack",
    "row_attention_for",
]
