// Runs the kernel's own sources on the CPU, over the stand-ins beside this file.
#include "machine.cuh"

#include "program.cuh"

using Kernel = void(const Params&, const TensorMap*, const TensorMap*, const TensorMap*);

template <class Element, int DIM, int ROWS, bool SWIFT>
void program(
    const Params& p, const TensorMap* keys, const TensorMap* values, const TensorMap* queries) {
  run_program<Element, Shape<DIM, ROWS, SWIFT>>(p, keys, values, SWIFT ? queries : nullptr);
}

template <class S>
void sizes(int* to) {
  const int values[] = {S::COLUMNS, S::PROGRAMS, S::STAGES, S::THREADS, S::SHARED_BYTES};
  memcpy(to, values, sizeof(values));
}

extern "C" {

// KERNELS: a list of CASE(type, head dim, rows, swift), in the order of the tests' list of them.
#define CASE(element, dim, rows, swift) program<element, dim, rows, swift>,
static Kernel* const kernels[] = {KERNELS};
#undef CASE
#define CASE(element, dim, rows, swift) sizes<Shape<dim, rows, swift>>,
static void (*const shapes[])(int*) = {KERNELS};

// Null, or what went wrong. ``kernel`` counts the kernels in the order of the list above.
const char* run(int kernel, int rows, const Params* p, const TensorMap* keys, const TensorMap* values,
                const TensorMap* queries, int programs, int seed) {
  const int threads = 128 + 2 * rows;
  const int cluster = p->cluster > 1 ? p->cluster : 1;
  gridDim.x = programs;
  fibers::chance.seed(seed);
  for (int first = 0; first < programs; first += cluster) {
    machine::begin(threads, cluster, first);
    for (auto& groups : machine::pending) groups.clear();
    fibers::body = [&] { kernels[kernel](*p, keys, values, queries); };
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

void emulated_sizes(int kernel, int* to) { shapes[kernel](to); }

int emulated_share_length(int prefix, int rows, int cluster, uint32_t inverse) {
  return share_length(prefix, rows, cluster, inverse);
}

int emulated_divided(int n, uint32_t inverse) { return divided(n, inverse); }

int emulated_params_size() { return sizeof(Params); }
}
