"""``jetflow bench serve``: servers under the load of vLLM's own benchmark client."""
