"""jetflow-train."""
