"""Benchmarks: speed and acceptance of decoding, and the proof that nothing is lost."""
