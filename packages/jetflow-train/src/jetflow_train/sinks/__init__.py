"""Where the figures of a run go: the JSONL file of the run, and trackers that are asked for."""
