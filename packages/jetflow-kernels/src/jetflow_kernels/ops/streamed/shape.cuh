// Sizes of the product kernel, and where everything lies in shared memory.
#pragma once
#include <stdint.h>

// A kernel for one number of rows of a tile; ``GATED``: half of a tile's columns are gates.
template <int ROWS_, bool GATED_>
struct ProductShape {
  static constexpr int ROWS = ROWS_;
  static constexpr bool GATED = GATED_;
  static constexpr int COLUMNS = 128;  // rows of the matrix in a tile, 64 for each warpgroup
  static constexpr int STEP = 64;      // inner dimension of a stage: 128 bytes, a swizzle atom
  // Two programs share a multiprocessor, also of two kernels behind one another.
  static constexpr int PROGRAMS = 2;
  static constexpr int STAGES = ROWS == 16 ? 6 : ROWS == 32 ? 5 : ROWS == 64 ? 4 : 3;
  static constexpr int CONSUMERS = 256;            // threads
  static constexpr int THREADS = CONSUMERS + 32;   // and the warp that brings everything
  static constexpr int REGISTERS = 112;            // of a thread: those of two programs fit
  static constexpr int GROUP_BYTES = 64 * 128;
  static constexpr int MATRIX_BYTES = 2 * GROUP_BYTES;
  static constexpr int STAGE_BYTES = MATRIX_BYTES + ROWS * 128;
  static constexpr int BARRIERS = 2 * STAGES + 1;
  static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 8 * BARRIERS;
  // The sums of one warp, a slab: 16 columns of the result. Slabs come where the stages were.
  static constexpr int SLABS = CONSUMERS / 32;
  static constexpr int SLAB_BYTES = 64 * ROWS;
  static_assert(SLABS * SLAB_BYTES <= STAGES * STAGE_BYTES, "");
  // Gates and what they gate are put together by one program.
  static constexpr int MOST_SHARES = GATED ? SLABS / 2 : SLABS;
};

template <class S>
struct Room {
  uint32_t base;
  __device__ __forceinline__ uint32_t matrix(int stage) const {
    return base + stage * S::STAGE_BYTES;
  }
  __device__ __forceinline__ uint32_t rows(int stage) const {
    return matrix(stage) + S::MATRIX_BYTES;
  }
  __device__ __forceinline__ uint32_t full(int stage) const {
    return matrix(S::STAGES) + 8 * stage;
  }
  __device__ __forceinline__ uint32_t empty(int stage) const { return full(S::STAGES + stage); }
  // Says that the slabs which others send are there.
  __device__ __forceinline__ uint32_t received() const { return full(2 * S::STAGES); }
  __device__ __forceinline__ uint32_t slab(int index) const { return base + index * S::SLAB_BYTES; }
};

// A place in the ring of stages, and the parity of the phase that its barriers are in.
template <class S>
struct Stage {
  int index = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++index == S::STAGES) {
      index = 0;
      parity ^= 1;
    }
  }
};
