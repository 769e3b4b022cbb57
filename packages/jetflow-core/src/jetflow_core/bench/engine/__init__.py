"""``jetflow bench engine``: rounds of the fast engine by size and phase, beside their floor."""
