"""Tree attention and prefill by flash-attn 4 (an extra), chosen only where it is asked for."""
