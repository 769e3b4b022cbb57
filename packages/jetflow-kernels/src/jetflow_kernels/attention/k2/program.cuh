// Paged tree attention for sm_90a: bulk tensor copies and warpgroup matrix multiplication.
//
// A program is one producer warpgroup, which brings keys and values, and one or two consumer
// warpgroups of 64 packed rows each (packed: tree row times query head of one key head). They share
// a ring of tiles; every tile of keys and of values has a barrier that says it is there (four
// arrivals, one of each producer warp, and its bytes) and one that says it was read (one arrival of
// each consumer warp). Both sides walk the same work items in the same order, so the n-th tile that
// is brought is the n-th that is read.
//
// The programs of a cluster take different pieces of the same tile. When all of them are through with
// their tiles, which a barrier of the cluster says, each sends the others the rows that those put
// together (combine.cuh). It ends, or goes on to the next item, when what is sent to it has arrived
// and was read.
//
// Where S::SWIFT, the same with a shorter start and end (queries.cuh, spread.cuh, lone_lengths());
// not run on a card yet.
//
// Estimated time line of one program, cluster of 6, 64 rows behind 1024 (a tile and a half), 1.75
// GHz, head dim 128; cycles from the start of the program. Build with KERNEL_CLOCK to see (clock.cuh).
//      0  barriers made, maps prefetched, end of the kernel before awaited
//    400  one request: 3 loads, few instructions, no division (older versions: some 2300)
//    700  table entry loaded, first copies of keys and values started; queries on their way
//   1600  first keys there (memory, not cache), queries published
//   2700  scores of 128 columns (16 multiplications of 64 cycles; tensor cores are the limit)
//   3900  their exponentials, nothing under way beside them (first tile)
//   4900  their sums; then half a tile: 500 + 700 + 500
//   6700  barrier of the cluster, 200; slabs sent, 500
//   7400  put together, 500, and written, 200
//   8100  end; with 700 cycles of launch behind the kernel before: 8800 = 5 us
// Each further tile of 128 columns takes 2650 cycles (measured over long prefixes on an H200: 1.45 us).
//
// Why nobody waits for ever: the producer brings K0 V0 K1 V1 ... and completes a tile before it
// waits for room for the next. Room for Kn or Vn needs tile n - STAGES to be read, and a consumer
// reads Kn before Vn-1 and nothing else out of order: reading Vn-STAGES needs no tile behind
// Kn-STAGES+1, which was brought before as there are at least two stages.
#pragma once
#include "consumer.cuh"

// ``queries`` is of q where S::SWIFT, and null elsewhere.
template <class Element, class S>
INLINE void run_program(
    const Params& p, const TensorMap* keys, const TensorMap* values, const TensorMap* queries) {
  STAMP(DEVICE_BEGIN);
  STAMP(BEGIN);
  STAMP(MULTIPROCESSOR);
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
    barrier_init(shared.received(), 1);
    if constexpr (S::SWIFT) {
      prefetch_map(queries);
      barrier_init(shared.queries_full(), 1);
      barrier_init(shared.queries_empty(), 4 * S::CONSUMERS);
    }
    barrier_init_done();
  }
  admit_kernel_behind();
  wait_for_kernel_before();
  STAMP(ADMITTED);
  const Lengths lone = lone_lengths<S>(p);
  if constexpr (S::SWIFT) ask_ahead<S>(p, queries, shared);
  // Pages are asked for when the lengths are known; a request alone has its first ones in this line.
  if (threadIdx.x == 32 && p.requests == 1) prefetch_line(p.page_table);
  __syncthreads();

  if (threadIdx.x < 128) {
    give_registers<S::PRODUCER_REGISTERS>();
    produce<S>(p, lone, keys, values, queries, shared);
  } else {
    take_registers<S::CONSUMER_REGISTERS>();
    Consumer<Element, S>(p, shared).run();
  }
}
