"""The adapter to vLLM's Model Runner V2 on a CPU, its kernels in Triton's interpreter."""
