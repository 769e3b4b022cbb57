"""Drafters besides the head: none at all, and probes that test an engine."""
