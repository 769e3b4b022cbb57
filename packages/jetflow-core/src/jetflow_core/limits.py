"""Limits that options are checked against before anything heavy is imported."""

MAX_BUDGET = 256
"""Most rows of one verify pass, root included."""

MAX_SLOTS = 4096
"""Most requests that a benchmark decodes together."""
