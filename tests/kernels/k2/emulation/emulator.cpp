// Runs the kernel's own sources on the CPU, over the stand-ins beside this file.
#include "machine.cuh"

#include "program.cuh"

using Kernel = void(const Params&, const TensorMap*, const TensorMap*);

template <class Element, int DIM, int ROWS>
void program(const Params& p, const TensorMap* keys, const TensorMap* values) {
  run_program<Element, Shape<DIM, ROWS>>(p, keys, values);
}

template <int DIM, int ROWS>
void sizes(int* to) {
  using S = Shape<DIM, ROWS>;
  const int values[] = {S::COLUMNS, S::PROGRAMS, S::STAGES, S::THREADS, S::SHARED_BYTES};
  memcpy(to, values, sizeof(values));
}

extern "C" {

// KERNELS: a list of CASE(type, head dim, rows), in the order of the tests' list of them.
#define CASE(element, dim, rows) program<element, dim, rows>,
static Kernel* const kernels[] = {KERNELS};

// Null, or what went wrong. ``kernel`` counts the kernels in the order of the list above.
const char* run(int kernel, int rows, const Params* p, const TensorMap* keys, const TensorMap* values,
                int programs, int seed) {
  const int threads = 128 + 2 * rows;
  const int cluster = p->cluster > 1 ? p->cluster : 1;
  gridDim.x = programs;
  fibers::chance.seed(seed);
  for (int first = 0; first < programs; first += cluster) {
    machine::begin(threads, cluster, first);
    for (auto& groups : machine::pending) groups.clear();
    fibers::body = [&] { kernels[kernel](*p, keys, values); };
    fibers::run(cluster * threads);
    if (!fibers::fault.empty()) return fibers::fault.c_str();
    if (!machine::copies.empty()) return "copies that nobody waited for";
  }
  return nullptr;
}

int emulated_chunk_length(int prefix, int rows, int heads) {
  return chunk_length(prefix, rows, heads);
}

uint64_t emulated_visible(int start, int end, int prefix, uint64_t low, uint64_t high) {
  return visible(start, end, prefix, low, high);
}

int emulated_word_of(int start, int prefix) { return word_of(start, prefix); }

void emulated_sizes(int dim, int rows, int* to) {
  if (dim == 64) rows == 64 ? sizes<64, 64>(to) : sizes<64, 128>(to);
  else rows == 64 ? sizes<128, 64>(to) : sizes<128, 128>(to);
}

int emulated_share_length(int prefix, int rows, int cluster, uint32_t inverse) {
  return share_length(prefix, rows, cluster, inverse);
}

int emulated_divided(int n, uint32_t inverse) { return divided(n, inverse); }

int emulated_params_size() { return sizeof(Params); }
}
