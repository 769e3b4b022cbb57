// Paged tree attention for sm_90a: bulk tensor copies and warpgroup matrix multiplication.
//
// A program is one producer warpgroup, which brings keys and values, and one or two consumer
// warpgroups of 64 packed rows each (packed: tree row times query head of one key head). They share
// a ring of tiles; every tile of keys and of values has a barrier that says it is there (four
// arrivals, one of each producer warp, and its bytes) and one that says it was read (one arrival of
// each consumer warp). Both sides walk the same work items in the same order, so the n-th tile that
// is brought is the n-th that is read.
//
// The programs of a cluster take different pieces of the same tile. When a program is through with
// its piece, it leaves its results in shared memory where the tiles were (consumer.cuh), and after a
// barrier of the cluster every program puts a share of the rows together (combine.cuh). After a
// second barrier shared memory is free for the tiles of the next item, or the program may end.
//
// Estimated time line of one program, cluster of 8, 64 rows behind 1024 (a tile and a half), 1.75
// GHz, head dim 128; cycles from the start of the program, a measurement may refute it:
//      0  barriers made, maps prefetched, end of the kernel before awaited
//    400  one request: 3 loads, few instructions, no division (older versions: some 2300)
//    900  table entry loaded, first copies of keys and values started; queries on their way
//   1800  first keys there (memory, not cache), queries published
//   2800  scores of 128 columns (16 multiplications of 64 cycles; tensor cores are the limit)
//   3700  their exponentials, nothing under way beside them (first tile)
//   4700  their sums; then half a tile: 500 + 500 + 500
//   6200  results left in shared memory, 300; first barrier and its fence, 400
//   7200  shares read from 8 programs, 300; put together and written, 200
//   7700  second barrier, end; with 700 cycles of launch behind the kernel before: 8400 = 4.8 us
// Each further tile of 128 columns takes 2650 cycles (measured over long prefixes: 1.5 us).
//
// Why nobody waits for ever: the producer brings K0 V0 K1 V1 ... and completes a tile before it
// waits for room for the next. Room for Kn or Vn needs tile n - STAGES to be read, and a consumer
// reads Kn before Vn-1 and nothing else out of order: reading Vn-STAGES needs no tile behind
// Kn-STAGES+1, which was brought before as there are at least two stages.
#pragma once
#include "consumer.cuh"

template <class Element, class S>
INLINE void run_program(const Params& p, const TensorMap* keys, const TensorMap* values) {
  // The swizzle of the copies and that of the multiplications agree at multiples of 1024 only.
  extern __shared__ __align__(1024) unsigned char memory[];
  Storage<S> shared{shared_address(memory)};
  if (shared.base % 1024 != 0) __trap();

  if (threadIdx.x == 0) {
    prefetch_map(keys);
    prefetch_map(values);
    for (int stage = 0; stage < S::STAGES; ++stage) {
      barrier_init(shared.keys_full(stage), 4);
      barrier_init(shared.values_full(stage), 4);
      barrier_init(shared.keys_empty(stage), 4 * S::CONSUMERS);
      barrier_init(shared.values_empty(stage), 4 * S::CONSUMERS);
    }
    barrier_init_done();
  }
  admit_kernel_behind();
  wait_for_kernel_before();
  __syncthreads();

  if (threadIdx.x < 128) {
    give_registers<S::PRODUCER_REGISTERS>();
    produce<S>(p, keys, values, shared);
  } else {
    take_registers<S::CONSUMER_REGISTERS>();
    Consumer<Element, S>(p, shared).run();
  }
}
