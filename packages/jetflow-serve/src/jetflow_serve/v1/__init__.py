"""The adapter to vLLM's Model Runner V1 on a CPU; only here is vLLM imported."""
