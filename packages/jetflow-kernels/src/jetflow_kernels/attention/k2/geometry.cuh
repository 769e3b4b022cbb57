// Sizes and index arithmetic of the sm_90a kernel. Plain C++, so that the tests run it on the CPU.
#pragma once
#include <stdint.h>

#include "matrix.cuh"

constexpr int MOST_SHARES = 8;  // programs of a cluster

// A kernel for one type, head dim and number of packed rows of a tile. SWIFT: with a shorter way to
// the first scores and from the last ones to the results (queries.cuh, spread.cuh, Lengths).
template <int DIM_, int ROWS_, bool SWIFT_>
struct Shape {
  static constexpr int DIM = DIM_;
  static constexpr int ROWS = ROWS_;
  static constexpr bool SWIFT = SWIFT_;
  // 64 columns for small trees: two programs share a multiprocessor and hide each other's waits.
  static constexpr int COLUMNS = ROWS == 64 ? 64 : 128;
  static constexpr int PROGRAMS = ROWS == 64 ? 2 : 1;
  static constexpr int STAGES = DIM == 64 ? 4 : 3;
  static constexpr int CONSUMERS = ROWS / 64;
  static constexpr int THREADS = 128 * (1 + CONSUMERS);
  // Rows in shared memory are swizzled over 128 bytes, so a tile is kept in halves of 64 values.
  static constexpr int HALVES = DIM / 64;
  static constexpr int HALF_BYTES = COLUMNS * 128;
  static constexpr int TILE_BYTES = HALVES * HALF_BYTES;
  static constexpr int Q_HALF_BYTES = 64 * 128;
  static constexpr int Q_GROUP_BYTES = HALVES * Q_HALF_BYTES;
  static constexpr int Q_BYTES = CONSUMERS * Q_GROUP_BYTES;
  static constexpr int BARRIERS = 4 * STAGES + (SWIFT ? 3 : 1);
  static constexpr int SHARED_BYTES = Q_BYTES + 2 * STAGES * TILE_BYTES + 8 * BARRIERS;
  // Registers of a thread at the start, and after the warpgroups have traded.
  static constexpr int REGISTERS = 65536 / (PROGRAMS * THREADS) / 8 * 8;
  static constexpr int PRODUCER_REGISTERS = 56;
  static constexpr int CONSUMER_REGISTERS = ROWS == 64 ? 200 : 224;
  // What the programs of a cluster send each other: the rows of one warp, a slab, as its lanes hold
  // them, 16 bytes of each lane side by side; then the largest score and the sum of weights of its
  // two rows. They arrive where keys and values were.
  static constexpr int SLABS = ROWS / 16;
  static constexpr int SLOT_BYTES = 64 * DIM + 512;
  // Where SWIFT, parts of a slab instead, of 32 columns.
  static constexpr int PARTS = DIM / 32;
  static constexpr int PART_BYTES = 64 * 32 + 128;
  // A program puts every so many of the slabs together, and has a slot for each program.
  static_assert((SLABS + MOST_SHARES - 1) * SLOT_BYTES <= 2 * STAGES * TILE_BYTES, "");
  static_assert((SLABS * PARTS + MOST_SHARES - 1) * PART_BYTES <= 2 * STAGES * TILE_BYTES, "");
  static_assert(
      PRODUCER_REGISTERS + CONSUMERS * CONSUMER_REGISTERS == (1 + CONSUMERS) * REGISTERS, "");
};

// The next power of two of a tree's rows.
__device__ __forceinline__ int bucket_of(int rows) {
  int below = rows > 1 ? rows - 1 : 0;
  below |= below >> 1;
  below |= below >> 2;
  below |= below >> 4;
  below |= below >> 8;
  return below + 1;
}

// n / d for a divisor that the host knows, by its inverse 2^32 / d + 1, or 0 for d = 1. Exact while
// n d < 2^32. A division by an unknown number takes some 40 instructions that wait for each other.
__device__ __forceinline__ int divided(int n, uint32_t inverse) {
  return inverse == 0 ? n : int(__umulhi(uint32_t(n), inverse));
}

// plan.share_length: positions of each program of a cluster, whose size has this inverse.
__device__ __forceinline__ int share_length(int prefix, int rows, int cluster, uint32_t inverse) {
  const int even = divided(prefix + bucket_of(rows) + cluster - 1, inverse);
  return (even + 63) / 64 * 64;
}

// plan.chunk_length.
__device__ __forceinline__ int chunk_length(int prefix, int rows, int heads) {
  int bucket = bucket_of(rows);
  int most = PLAN_SPLIT_WORK / (bucket * heads);
  most = most < 1 ? 1 : most > PLAN_MAX_SPLITS ? PLAN_MAX_SPLITS : most;
  int even = (prefix + bucket + most - 1) / most;
  even = (even + 63) / 64 * 64;
  return even < PLAN_MIN_CHUNK ? PLAN_MIN_CHUNK : even;
}

// Box ``index`` of a tile: its half and its first row; halves are innermost.
__device__ __forceinline__ int box_half(int index, int halves) { return index % halves; }
__device__ __forceinline__ int box_row(int index, int halves, int height) {
  return index / halves * height;
}

// The ancestor word that holds the first of 64 columns from position ``start`` on. Words before 0
// stand for the prefix: all ones.
__device__ __forceinline__ int word_of(int start, int prefix) { return (start - prefix) >> 6; }

// Which of the 64 columns from position ``start`` on a row sees, given the word of the first
// column and the next one. Positions from ``end`` on are not there.
__device__ __forceinline__ uint64_t visible(
    int start, int end, int prefix, uint64_t low, uint64_t high) {
  int shift = (start - prefix) & 63;
  // A shift by 64 is not defined, so the upper word goes in two steps.
  uint64_t bits = (low >> shift) | ((high << 1) << (63 - shift));
  int left = end - start;
  if (left <= 0) return 0;
  return left < 64 ? bits & ((1ull << left) - 1) : bits;
}
