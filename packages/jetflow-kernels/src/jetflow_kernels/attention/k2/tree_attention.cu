// Paged tree attention for sm_90a: one kernel for each build. The builder names it and says for what
// it is: KERNEL_NAME, KERNEL_ELEMENT (Half, Bfloat), KERNEL_DIM and KERNEL_ROWS.
#include "program.cuh"

using KernelShape = Shape<KERNEL_DIM, KERNEL_ROWS>;

extern "C" __global__ void __launch_bounds__(KernelShape::THREADS, KernelShape::PROGRAMS)
    KERNEL_NAME(
        const __grid_constant__ Params p, const __grid_constant__ TensorMap keys,
        const __grid_constant__ TensorMap values) {
  run_program<KERNEL_ELEMENT, KernelShape>(p, &keys, &values);
}
