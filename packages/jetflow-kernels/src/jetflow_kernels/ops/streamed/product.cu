// One kernel for each build. The builder names it and says for what it is: KERNEL_NAME,
// KERNEL_ELEMENT (Half, Bfloat), KERNEL_ROWS, KERNEL_COLUMNS and KERNEL_GATED (0, 1).
#include "product.cuh"

using KernelShape = ProductShape<KERNEL_ROWS, KERNEL_COLUMNS, KERNEL_GATED>;

extern "C" __global__ void __launch_bounds__(KernelShape::THREADS)
    KERNEL_NAME(
        const __grid_constant__ ProductParams p, const __grid_constant__ TensorMap matrix,
        const __grid_constant__ TensorMap rows) {
  run_product<KERNEL_ELEMENT, KernelShape>(p, &matrix, &rows);
}
