"""Products of few rows in CUDA C++ for sm_90a: the matrix streams through shared memory once."""
