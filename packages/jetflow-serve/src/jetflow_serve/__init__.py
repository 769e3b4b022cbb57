"""jetflow-serve."""
