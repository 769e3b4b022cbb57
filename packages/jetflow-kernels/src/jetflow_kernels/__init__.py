"""jetflow-kernels."""
