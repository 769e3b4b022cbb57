"""The draft head: its description, weights, files and incremental drafting."""
