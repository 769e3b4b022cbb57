// Runs the product kernel's own sources on the CPU, over stand-ins for its instructions.
#include "machine.cuh"

#include "product.cuh"

using Kernel = void(const ProductParams&, const TensorMap*, const TensorMap*);

template <class Element, int ROWS, int COLUMNS, bool GATED>
void program(const ProductParams& p, const TensorMap* matrix, const TensorMap* rows) {
  run_product<Element, ProductShape<ROWS, COLUMNS, GATED>>(p, matrix, rows);
}

template <class S>
void sizes(int* to) {
  const int values[] = {S::COLUMNS, S::STEP, S::STAGES, S::THREADS, S::SHARED_BYTES};
  memcpy(to, values, sizeof(values));
}

extern "C" {

// KERNELS: a list of CASE(type, rows, columns, gated), in the order of the tests' list of them.
#define CASE(element, rows, columns, gated) program<element, rows, columns, gated>,
static Kernel* const kernels[] = {KERNELS};
#undef CASE
#define CASE(element, rows, columns, gated) sizes<ProductShape<rows, columns, gated>>,
static void (*const shapes[])(int*) = {KERNELS};

// Null, or what went wrong. ``kernel`` counts the kernels in the order of the list above.
const char* run(int kernel, const ProductParams* p, const TensorMap* matrix, const TensorMap* rows,
                int threads, int programs, int seed) {
  const int cluster = 1 << p->share_log;
  gridDim.x = programs;
  fibers::chance.seed(seed);
  for (int first = 0; first < programs; first += cluster) {
    machine::begin(threads, cluster, first);
    for (auto& groups : machine::pending) groups.clear();
    fibers::body = [&] { kernels[kernel](*p, matrix, rows); };
    fibers::run(cluster * threads);
    if (!fibers::fault.empty()) return fibers::fault.c_str();
    if (!machine::copies.empty()) return "copies that nobody waited for";
  }
  return nullptr;
}

void emulated_sizes(int kernel, int* to) { shapes[kernel](to); }
int emulated_params_size() { return sizeof(ProductParams); }
}
