// Time stamps of builds for measuring, with KERNEL_CLOCK; the shipped kernel has none.
//
// One thread of the producer and one of the consumers write the time at which they reach a phase to
// ``stamps``, [programs, PHASES]. Where a program takes several items, those of the last one remain.
// All are cycles of the program's multiprocessor, but for the first two, which are nanoseconds of the
// whole device, and the last, which names the multiprocessor.
#pragma once
#include "machine.cuh"

#ifdef KERNEL_CLOCK
enum Phase {
  DEVICE_BEGIN,      // nanoseconds at the first instruction
  DEVICE_END,        // and at the consumers' last one
  BEGIN,             // the first instruction
  ADMITTED,          // the kernel ahead on the stream has ended
  PRODUCER_ITEM,     // the producer knows its item
  PRODUCER_PAGE,     // and the page of the last tile so far
  PRODUCER_COPIES,   // and has started the copies of the first keys
  PRODUCER_LAST,     // and all other copies
  ITEM,              // the consumers know their item
  QUERIES,           // queries published
  KEYS,              // first keys there
  FIRST_SCORES,
  WEIGHTS,           // first weights
  TILE_1, TILE_2, TILE_3, TILE_4, TILE_5, TILE_6,  // further tiles, until their weights
  HALF_KEYS,         // the half tile at the end; keys and scores where it is the only one
  HALF_SCORES,
  HALF_WEIGHTS,
  SUMS,              // nothing left to multiply
  CLUSTER,           // all programs of the cluster are as far
  SENT,              // results sent to others
  ARRIVED,           // results of others there
  TOGETHER,          // put together
  STORED,            // written, as far as this thread knows
  NO_ITEM,           // no further item
  UNUSED_1, UNUSED_2,
  MULTIPROCESSOR,
  PHASES
};

INLINE void stamp(const Params& p, int phase) {
  if (threadIdx.x != 0 && threadIdx.x != 128) return;
  uint64_t now;
  if (phase == DEVICE_BEGIN || phase == DEVICE_END) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
  } else if (phase == MULTIPROCESSOR) {
    uint32_t which;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(which)::"memory");
    now = which;
  } else {
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(now)::"memory");
  }
  p.stamps[blockIdx.x * PHASES + phase] = now;
}

// Of the tile at ``start``, which is not the first.
template <class Shape, class Item>
INLINE int tile_phase(const Item& item, int start) {
  const int tile = (start - item.begin) / Shape::COLUMNS;
  return TILE_1 + (tile < 6 ? tile : 6) - 1;
}
#define STAMP(phase) stamp(p, phase)
#else
#define STAMP(phase) static_cast<void>(0)
#endif
