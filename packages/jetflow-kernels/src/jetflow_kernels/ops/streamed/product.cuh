// Rows times a matrix that is read from memory once, for sm_90a: bulk copies and warpgroup
// multiplications, with the matrix as the side of 64.
//
// A tile is some rows of the matrix (columns of the result) and all rows. One warp brings stages of 64
// columns of the matrix and of the rows; warpgroups multiply, and write from their registers.
// Where there are more tiles than multiprocessors, a program has several behind one another, and the
// next one's stages are on their way while it writes. Where there are fewer, the programs of a
// cluster take shares of the inner dimension of one tile (finish.cuh).
//
// Where the launch allows it the kernel is placed while the one ahead still runs. The first stages
// of the matrix, which no kernel ahead writes, are asked for at once; rows after the wait.
#pragma once
#include "finish.cuh"

// What a program does of each of its tiles.
struct Piece {
  int rank;
  int first, count;  // stages
};

INLINE Piece piece_of(const ProductParams& p) {
  Piece piece;
  piece.rank = int(blockIdx.x) & ((1 << p.share_log) - 1);
  piece.first = p.steps * piece.rank >> p.share_log;
  piece.count = (p.steps * (piece.rank + 1) >> p.share_log) - piece.first;
  return piece;
}

INLINE int first_tile(const ProductParams& p) { return int(blockIdx.x) >> p.share_log; }
INLINE int next_tile(const ProductParams& p, int tile) {
  return tile + (int(gridDim.x) >> p.share_log);
}

// Starts the copy of a stage of the matrix; its barrier also expects the rows.
template <class S>
INLINE void ask_for_matrix(
    const TensorMap* matrix, Room<S> room, int tile, int step, int stage) {
  const uint32_t full = room.full(stage);
  barrier_expect(full, S::STAGE_BYTES);
  barrier_arrive(full);
  // Gates lie in the first half of the matrix, what they gate in the second: eight rows of either
  // in turns are one box of a map with an axis for the halves.
  const int block = S::GATED ? tile * (S::COLUMNS / 16) : 0;
  copy_box(room.matrix(stage), matrix, full, S::STEP * step, S::GATED ? 0 : tile * S::COLUMNS, 0,
           block);
}

template <class S>
INLINE void ask_for_rows(const TensorMap* rows, Room<S> room, int step, int stage) {
  copy_box(room.rows(stage), rows, room.full(stage), S::STEP * step, 0, 0, 0);
}

// The warp that brings everything; one lane does.
template <class S>
INLINE void bring(
    const ProductParams& p, const TensorMap* matrix, const TensorMap* rows, Room<S> room,
    const Piece& piece) {
  const bool mine = threadIdx.x % 32 == 0;
  const int early = piece.count < S::STAGES ? piece.count : S::STAGES;
  int tile = first_tile(p);
  if (mine) {
    for (int i = 0; i < early; ++i) ask_for_matrix<S>(matrix, room, tile, piece.first + i, i);
  }
  wait_for_kernel_before();
  if (mine) {
    for (int i = 0; i < early; ++i) ask_for_rows<S>(rows, room, piece.first + i, i);
  }
  __syncwarp();
  Stage<S> stage;
  for (int i = 0; i < early; ++i) stage.advance();
  for (int i = early; tile < p.tiles; i = 0, tile = next_tile(p, tile)) {
    for (; i < piece.count; ++i, stage.advance()) {
      barrier_wait(room.empty(stage.index), stage.parity ^ 1);
      if (mine) {
        ask_for_matrix<S>(matrix, room, tile, piece.first + i, stage.index);
        ask_for_rows<S>(rows, room, piece.first + i, stage.index);
      }
      __syncwarp();
    }
  }
}

// Starts a consumer warpgroup's multiplications of one stage.
template <class Element, class S>
INLINE void start_step(Room<S> room, const Stage<S>& stage, float (&sums)[S::SUMS]) {
  barrier_wait(room.full(stage.index), stage.parity);
  const int group = threadIdx.x / 128;
  const uint32_t at = room.matrix(stage.index) + group * S::GROUP_BYTES;
  const uint64_t left = matrix(at, 16), right = matrix(room.rows(stage.index), 16);
  mma_fence();
#pragma unroll
  for (int inner = 0; inner < S::STEP / 16; ++inner) {
    // 16 values are 32 bytes of a row; addresses in a matrix count sixteens of bytes.
    mma_shared(Element(), sums, left + 2 * inner, right + 2 * inner, 1);
  }
  mma_commit();
}

INLINE void release(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// All of this program's stages of a tile, of which there is at least one.
template <class Element, class S>
INLINE void multiply(
    Room<S> room, const Piece& piece, Stage<S>& stage, float (&sums)[S::SUMS]) {
#pragma unroll
  for (int i = 0; i < S::SUMS; ++i) sums[i] = 0.0f;
  hold(sums);
  start_step<Element, S>(room, stage, sums);
  for (int step = 1; step < piece.count; ++step) {
    const uint32_t before = room.empty(stage.index);
    stage.advance();
    start_step<Element, S>(room, stage, sums);
    // One step is under way while the next is asked for; the one before has been read.
    mma_wait<1>();
    release(before);
  }
  mma_wait<0>();
  hold(sums);
  release(room.empty(stage.index));
  stage.advance();
}

template <class Element, class S>
INLINE void run_product(const ProductParams& p, const TensorMap* matrix, const TensorMap* rows) {
  // The swizzle of the copies and that of the multiplications agree at multiples of 1024 only.
  extern __shared__ __align__(1024) unsigned char memory[];
  Room<S> room{shared_address(memory)};
  if (room.base % 1024 != 0) __trap();
  if (threadIdx.x == 0) {
    prefetch_map(matrix);
    prefetch_map(rows);
    for (int stage = 0; stage < S::STAGES; ++stage) {
      barrier_init(room.full(stage), 1);
      barrier_init(room.empty(stage), S::CONSUMERS / 32);
    }
    barrier_init(room.received(), 1);
    barrier_init_done();
    barrier_expect(room.received(), bytes_to_come<S>(p));
    barrier_arrive(room.received());
  }
  admit_kernel_behind();
  __syncthreads();
  const Piece piece = piece_of(p);
  if (threadIdx.x < S::CONSUMERS) {
    Stage<S> stage;
    float sums[S::SUMS];
    int tile = first_tile(p);
    multiply<Element, S>(room, piece, stage, sums);
    if (p.share_log != 0) {
      finish_together<Element, S>(p, room, piece.rank, tile, sums);
      return;
    }
    finish_alone<Element, S>(p, tile, sums);
    while ((tile = next_tile(p, tile)) < p.tiles) {
      multiply<Element, S>(room, piece, stage, sums);
      finish_alone<Element, S>(p, tile, sums);
    }
  } else {
    bring<S>(p, matrix, rows, room, piece);
    if (p.share_log != 0) cluster_sync();
  }
}
