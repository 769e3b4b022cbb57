"""Trees on a GPU, by vLLM's Model Runner V2."""
