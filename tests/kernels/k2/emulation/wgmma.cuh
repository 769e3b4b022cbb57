// Warpgroup matrix multiplication by the CPU, as late as the kernel's waits allow, so that inputs
// that are changed or given away too early are noticed. Stands in for the kernel's own wgmma.cuh.
#pragma once
#include "geometry.cuh"
#include "machine.cuh"

struct Half {
  static float widen(uint16_t bits) {
    _Float16 value;
    memcpy(&value, &bits, 2);
    return float(value);
  }
  static uint16_t narrow(float value) {
    const _Float16 half = _Float16(value);
    uint16_t bits;
    memcpy(&bits, &half, 2);
    return bits;
  }
  static uint32_t pack(float a, float b) { return narrow(a) | uint32_t(narrow(b)) << 16; }
};

struct Bfloat {
  static float widen(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
  }
  static uint16_t narrow(float value) {
    uint32_t wide;
    memcpy(&wide, &value, 4);
    if (value != value) return uint16_t(wide >> 16 | 64);
    return uint16_t((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  static uint32_t pack(float a, float b) { return narrow(a) | uint32_t(narrow(b)) << 16; }
};

namespace machine {

struct Product {
  float (*widen)(uint16_t);
  float* sums;
  int columns;
  bool add, turned;       // turned: the columns of b are adjacent in memory, not its rows
  const uint32_t* left;   // registers of this thread, or null
  uint64_t a, b;
};

// Groups of each thread; the last one is open.
inline std::vector<std::vector<Product>> pending[MOST_PROGRAMS * 384];
inline uint32_t start(uint64_t matrix) { return uint32_t(matrix & 0x3fff) << 4; }
inline uint32_t leading(uint64_t matrix) { return uint32_t(matrix >> 16 & 0x3fff) << 4; }
inline uint32_t stride(uint64_t matrix) { return uint32_t(matrix >> 32 & 0x3fff) << 4; }

inline uint16_t element(uint64_t matrix, int row, int k, bool turned) {
  if (matrix >> 62 != 1 || (matrix >> 49 & 7)) throw Fault("not a matrix with 128-byte swizzle");
  uint32_t at = start(matrix);
  at += turned ? row / 64 * leading(matrix) + k / 8 * stride(matrix) + k % 8 * 128 + row % 64 * 2
               : row / 8 * stride(matrix) + row % 8 * 128 + k * 2;
  at = swizzle(at);
  if (here().unseen[at / 16]) throw Fault("tensor cores read what was not published");
  uint16_t bits;
  memcpy(&bits, bytes(at), 2);
  return bits;
}

inline void multiply(const Product& product) {
  const int thread = threadIdx.x % 128, lane = thread % 32;
  float left[2][16];
  for (int row = 0; row < 2; ++row) {
    for (int k = 0; k < 16; ++k) {
      uint16_t bits;
      if (product.left == nullptr) {
        bits = element(product.a, thread / 32 * 16 + lane / 4 + 8 * row, k, false);
      } else {
        const int owner = fibers::current / 4 * 4 + k % 8 / 2;
        const auto& groups_of_owner = pending[owner];
        const size_t at = &product - pending[fibers::current].front().data();
        const uint32_t both = groups_of_owner.front()[at].left[row + k / 8 * 2];
        bits = uint16_t(k % 2 ? both >> 16 : both);
      }
      left[row][k] = product.widen(bits);
    }
  }
  for (int i = 0; i < product.columns / 2; ++i) {
    const int row = i / 2 % 2, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    float sum = product.add ? product.sums[i] : 0.0f;
    for (int k = 0; k < 16; ++k) {
      sum += left[row][k] * product.widen(element(product.b, column, k, product.turned));
    }
    product.sums[i] = sum;
  }
}

inline void note(Product product) {
  auto& groups_of_mine = pending[fibers::current];
  if (groups_of_mine.empty()) groups_of_mine.emplace_back();
  groups_of_mine.back().push_back(product);
}

}  // namespace machine

inline void mma_fence() {}
inline void mma_commit() { machine::pending[fibers::current].emplace_back(); }

template <int PENDING>
void mma_wait() {
  auto& mine = machine::pending[fibers::current];
  fibers::Meeting& group = machine::here().multiplying[threadIdx.x / 128];
  if (mine.empty() || !mine.back().empty()) throw machine::Fault("a wait for an open group");
  if (threadIdx.x % 128 == 0) fibers::linger();
  while (mine.size() > PENDING + 1) {
    // Left sides lie in the registers of neighbours: nobody goes on before all have read them.
    group.join();
    for (auto& product : mine.front()) machine::multiply(product);
    group.join();
    mine.erase(mine.begin());
    group.join();
  }
}

template <class Values>
void hold(Values&) {}

template <class Element, int COUNT>
void mma_shared(Element, float (&d)[COUNT], uint64_t a, uint64_t b, int add) {
  machine::note({Element::widen, d, 2 * COUNT, add != 0, false, nullptr, a, b});
}

template <class Element, int COUNT>
void mma_registers(Element, float (&d)[COUNT], const uint32_t* a, uint64_t b) {
  machine::note({Element::widen, d, 2 * COUNT, true, true, a, 0, b});
}
