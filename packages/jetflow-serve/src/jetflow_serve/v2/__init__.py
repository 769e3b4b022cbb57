"""The adapter to vLLM's Model Runner V2."""
