// Sizes of the product kernel, and where everything lies in shared memory.
#pragma once
#include <stdint.h>

// A kernel for a tile of some rows and columns; ``GATED``: every other eight of its columns gate the
// eight that follow.
template <int ROWS_, int COLUMNS_, bool GATED_>
struct ProductShape {
  static constexpr int ROWS = ROWS_;
  static constexpr int COLUMNS = COLUMNS_;  // rows of the matrix
  static constexpr bool GATED = GATED_;
  static constexpr int STEP = 64;  // inner dimension of a stage: 128 bytes, a swizzle atom
  static constexpr int GROUPS = COLUMNS / 64;       // warpgroups that multiply
  static constexpr int CONSUMERS = 128 * GROUPS;    // threads
  static constexpr int THREADS = CONSUMERS + 32;    // and the warp that brings everything
  static constexpr int GROUP_BYTES = 64 * 128;
  static constexpr int MATRIX_BYTES = COLUMNS * 128;
  static constexpr int STAGE_BYTES = MATRIX_BYTES + ROWS * 128;
  // All of a multiprocessor's memory: what is on its way must outlast the way.
  static constexpr int STAGES = (232448 - 1024) / STAGE_BYTES;
  static constexpr int BARRIERS = 2 * STAGES + 1;
  static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + 8 * BARRIERS;
  static constexpr int SUMS = ROWS / 2;  // of a thread
  // What one warp has of a tile, a slab, as its lanes hold it. Slabs come where the stages were.
  static constexpr int SLABS = CONSUMERS / 32;
  static constexpr int SLAB_BYTES = 4 * SUMS * 32;
  static_assert(8 * BARRIERS <= 1024 && SLABS * SLAB_BYTES <= STAGES * STAGE_BYTES, "");
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
