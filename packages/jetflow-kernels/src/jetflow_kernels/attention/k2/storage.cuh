// Shared memory of a program, and the order in which its tiles are used.
#pragma once
#include "geometry.cuh"
#include "machine.cuh"

// Where everything is in shared memory.
template <class S>
struct Storage {
  uint32_t base;
  INLINE uint32_t q(int group) const { return base + group * S::Q_GROUP_BYTES; }
  INLINE uint32_t keys(int stage) const { return base + S::Q_BYTES + stage * S::TILE_BYTES; }
  INLINE uint32_t values(int stage) const { return keys(S::STAGES + stage); }
  // Where results of another program of the cluster arrive, and the barrier that says so.
  INLINE uint32_t slot(int index) const { return keys(0) + index * S::SLOT_BYTES; }
  INLINE uint32_t part_slot(int index) const { return keys(0) + index * S::PART_BYTES; }
  INLINE uint32_t received() const { return barrier(4 * S::STAGES); }
  // Of queries that the copy engine brings.
  INLINE uint32_t queries_full() const { return barrier(4 * S::STAGES + 1); }
  INLINE uint32_t queries_empty() const { return barrier(4 * S::STAGES + 2); }
  INLINE uint32_t barrier(int index) const { return keys(2 * S::STAGES) + 8 * index; }
  INLINE uint32_t keys_full(int stage) const { return barrier(stage); }
  INLINE uint32_t keys_empty(int stage) const { return barrier(S::STAGES + stage); }
  INLINE uint32_t values_full(int stage) const { return barrier(2 * S::STAGES + stage); }
  INLINE uint32_t values_empty(int stage) const { return barrier(3 * S::STAGES + stage); }
};

// A place in the ring of tiles, and the parity of the phase that its barriers are in.
template <class S>
struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  INLINE void advance() {
    if (++stage == S::STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};
