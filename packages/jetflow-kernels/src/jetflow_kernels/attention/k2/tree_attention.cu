// Paged tree attention for sm_90a: one kernel for each build. The builder names it and says for what
// it is: KERNEL_NAME, KERNEL_ELEMENT (Half, Bfloat), KERNEL_DIM, KERNEL_ROWS and KERNEL_SWIFT (0, 1).
#include "program.cuh"

using KernelShape = Shape<KERNEL_DIM, KERNEL_ROWS, KERNEL_SWIFT>;

extern "C" __global__ void __launch_bounds__(KernelShape::THREADS, KernelShape::PROGRAMS)
    KERNEL_NAME(
        const __grid_constant__ Params p, const __grid_constant__ TensorMap keys,
        const __grid_constant__ TensorMap values
#if KERNEL_SWIFT
        , const __grid_constant__ TensorMap queries) {
  run_program<KERNEL_ELEMENT, KernelShape>(p, &keys, &values, &queries);
}
#else
    ) {
  run_program<KERNEL_ELEMENT, KernelShape>(p, &keys, &values, nullptr);
}
#endif
