"""``jetflow generate``."""


def command() -> None:
    """Write text with a target and a draft head, and say how fast it went."""
