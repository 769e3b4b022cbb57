"""What every report of speed or acceptance carries, as small functions that need no torch."""
