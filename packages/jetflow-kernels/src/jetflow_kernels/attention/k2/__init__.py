"""Tree attention in CUDA C++ for sm_90a, built on first use."""
