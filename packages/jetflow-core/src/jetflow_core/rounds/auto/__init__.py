"""Budget ``auto``: what a round costs, what it is expected to give, and the rows that pay."""
