"""jetflow-tree."""
