// Runs the kernel's own sources on the CPU, over the stand-ins beside this file.
#include "machine.cuh"

#include "program.cuh"

using Program = void(const Params&, const TensorMap*, const TensorMap*);

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

// Null, or what went wrong. ``kernel`` counts the kernels in the order of the list below.
const char* run(int kernel, const Params* p, const TensorMap* keys, const TensorMap* values,
                int programs, int seed) {
  static const Program* const kernels[] = {
      program<Half, 64, 64>,    program<Half, 64, 128>,    program<Half, 128, 64>,
      program<Half, 128, 128>,  program<Bfloat, 64, 64>,   program<Bfloat, 64, 128>,
      program<Bfloat, 128, 64>, program<Bfloat, 128, 128>};
  const int threads = kernel % 2 ? 384 : 256;
  gridDim.x = programs;
  fibers::chance.seed(seed);
  for (int program = 0; program < programs; ++program) {
    blockIdx.x = program;
    machine::begin(threads);
    for (auto& groups : machine::pending) groups.clear();
    fibers::body = [&] { kernels[kernel](*p, keys, values); };
    fibers::run(threads);
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

int emulated_params_size() { return sizeof(Params); }
}
