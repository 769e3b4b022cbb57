"""The adapter to vLLM's Model Runner V1 on a CPU."""
