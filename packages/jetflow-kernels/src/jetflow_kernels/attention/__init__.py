"""Paged tree attention on the GPU."""
