// Matrices in shared memory, rows of 128 bytes with the 128-byte swizzle, as copies write them and
// multiplications read them. Plain C++, so that the tests run it on the CPU.
#pragma once
#include <stdint.h>

// Where 16 bytes of a row are in a half tile: what the copy engine's 128-byte swizzle does to rows
// of 128 bytes that start at a multiple of 1024.
__device__ __forceinline__ int swizzled(int row, int sixteenth) {
  return row * 128 + ((sixteenth ^ (row & 7)) << 4);
}

// A matrix of 128-byte rows in shared memory with the 128-byte swizzle: groups of 8 rows follow
// each other. ``half_bytes`` is how far the next 64 values of a row are, where one multiplication
// takes both halves as its columns.
__device__ __forceinline__ uint64_t matrix(uint32_t address, int half_bytes) {
  constexpr uint64_t SWIZZLE_128 = 1ull << 62;
  constexpr uint64_t EIGHT_ROWS = (1024ull >> 4) << 32;
  return SWIZZLE_128 | EIGHT_ROWS | (uint64_t(half_bytes) >> 4) << 16 | (address & 0x3FFFF) >> 4;
}
