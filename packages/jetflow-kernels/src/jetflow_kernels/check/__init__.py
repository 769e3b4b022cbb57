"""The full lists that the kernels are held to, for a GPU: ``python -m jetflow_kernels.check``."""
