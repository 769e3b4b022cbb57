"""The lossless check of the fast engine: identity, rounding, long sampling."""
