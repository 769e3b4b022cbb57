"""Budget ``auto``: jetflow-core's choice of rows, for batches as vLLM forms them."""
