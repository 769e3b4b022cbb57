"""Limits that options are checked against before anything heavy is imported."""

MAX_BUDGET = 256
"""Most rows of one verify pass, root included."""

MAX_SLOTS = 4096
"""Most requests that a benchmark decodes together."""

ROUND_PAGES = (16, 256)
"""Fewest and most rows of a page that the installed steps of a round take on a GPU."""

ROUND_SLOTS = 1024
"""Most requests of a round that they take."""

ROUND_HEAD_DIMS = (64, 128, 256)
"""Head dims that they take."""
