"""jetflow-core."""
