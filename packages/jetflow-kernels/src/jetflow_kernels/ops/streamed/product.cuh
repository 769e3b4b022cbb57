// Rows times a matrix that is read from memory once, for sm_90a: bulk copies and warpgroup
// multiplications, with the matrix as the side of 64.
//
// A program has 128 rows of the matrix (columns of the result) and a share of the inner dimension:
// the programs of a cluster take one tile together. One warp brings stages of 64 columns of the
// matrix and of the rows; two warpgroups multiply. Then each warp sends its sums, a slab, to the
// program of the cluster that adds them up, in the order of the shares, and writes them: no memory
// but the chip's is used, and no bit depends on who comes first.
//
// Where the launch allows it the kernel is placed while the one ahead still runs. The first stages
// of the matrix, which no kernel ahead writes, are asked for at once; rows after the wait.
#pragma once
#include "instructions.cuh"
#include "shape.cuh"

// What the host passes; launch.py holds the same fields in the same order. Strides in elements.
struct ProductParams {
  void* out;
  const void* bias;  // or null
  int64_t out_row;
  int32_t rows;
  int32_t columns;    // of the result
  int32_t steps;      // stages that cover the inner dimension
  int32_t share_log;  // programs of a cluster: 2 to this power
};

// What a program does.
struct Piece {
  int tile, rank;
  int first, count;  // stages
};

INLINE Piece piece_of(const ProductParams& p) {
  Piece piece;
  piece.tile = int(blockIdx.x) >> p.share_log;
  piece.rank = int(blockIdx.x) - (piece.tile << p.share_log);
  piece.first = p.steps * piece.rank >> p.share_log;
  piece.count = (p.steps * (piece.rank + 1) >> p.share_log) - piece.first;
  return piece;
}

// Starts the copies of a stage of the matrix, of which the barrier also expects the rows.
template <class S>
INLINE void ask_for_matrix(
    const ProductParams& p, const TensorMap* matrix, Room<S> room, const Piece& piece, int step,
    int stage) {
  const uint32_t full = room.full(stage);
  barrier_expect(full, S::STAGE_BYTES);
  barrier_arrive(full);
  // Gates lie in the first half of the matrix, what they gate in the second.
  const int first = piece.tile * (S::GATED ? 64 : 128);
  const int second = first + (S::GATED ? p.columns : 64);
  const int inner = S::STEP * (piece.first + step);
  copy_box(room.matrix(stage), matrix, full, inner, first, 0, 0);
  copy_box(room.matrix(stage) + S::GROUP_BYTES, matrix, full, inner, second, 0, 0);
}

template <class S>
INLINE void ask_for_rows(
    const TensorMap* rows, Room<S> room, const Piece& piece, int step, int stage) {
  copy_box(room.rows(stage), rows, room.full(stage), S::STEP * (piece.first + step), 0, 0, 0);
}

// The warp that brings everything; one lane does.
template <class S>
INLINE void bring(
    const ProductParams& p, const TensorMap* matrix, const TensorMap* rows, Room<S> room,
    const Piece& piece) {
  const bool mine = threadIdx.x % 32 == 0;
  const int early = piece.count < S::STAGES ? piece.count : S::STAGES;
  if (mine) {
    for (int step = 0; step < early; ++step) ask_for_matrix(p, matrix, room, piece, step, step);
  }
  wait_for_kernel_before();
  if (mine) {
    for (int step = 0; step < early; ++step) ask_for_rows(rows, room, piece, step, step);
  }
  __syncwarp();
  Stage<S> stage;
  for (int step = early; step < piece.count; ++step, stage.advance()) {
    barrier_wait(room.empty(stage.index), stage.parity);
    if (mine) {
      ask_for_matrix(p, matrix, room, piece, step, stage.index);
      ask_for_rows(rows, room, piece, step, stage.index);
    }
    __syncwarp();
  }
}

// Starts a consumer warpgroup's multiplications of one stage: its 64 rows of the matrix.
template <class Element, class S>
INLINE void start_step(Room<S> room, const Stage<S>& stage, float (&sums)[S::ROWS / 2]) {
  barrier_wait(room.full(stage.index), stage.parity);
  const int group = threadIdx.x / 128;
  const uint64_t left = matrix(room.matrix(stage.index) + group * S::GROUP_BYTES, 16);
  const uint64_t right = matrix(room.rows(stage.index), 16);
  mma_fence();
#pragma unroll
  for (int inner = 0; inner < S::STEP / 16; ++inner) {
    // 16 values are 32 bytes of a row; addresses in a matrix count sixteens of bytes.
    mma_shared(Element(), sums, left + 2 * inner, right + 2 * inner, 1);
  }
  mma_commit();
}

// All of this program's stages, of which there is at least one.
template <class Element, class S>
INLINE void multiply(Room<S> room, const Piece& piece, float (&sums)[S::ROWS / 2]) {
#pragma unroll
  for (int i = 0; i < S::ROWS / 2; ++i) sums[i] = 0.0f;
  Stage<S> stage;
  start_step<Element, S>(room, stage, sums);
  for (int step = 1; step < piece.count; ++step) {
    const uint32_t before = room.empty(stage.index);
    stage.advance();
    start_step<Element, S>(room, stage, sums);
    // One step is under way while the next is asked for; the one before has been read.
    mma_wait<1>();
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(before);
  }
  mma_wait<0>();
  hold(sums);
}

// Who adds up the slabs of this warp, and where they lie there.
struct Slab {
  int owner;
  int first;  // that of share 0; the others follow
};

template <class S>
INLINE Slab slab_of(const ProductParams& p) {
  // Alike in a warp, which the compiler does not see without the exchange.
  const int warp = __shfl_sync(0xffffffff, int(threadIdx.x / 32), 0);
  const int shares = 1 << p.share_log;
  // The program that has the gates also has what they gate.
  const int owner = (S::GATED ? warp % 4 : warp) & (shares - 1);
  const int place = S::GATED ? warp / 4 * (4 >> p.share_log) + (warp % 4 >> p.share_log)
                             : warp >> p.share_log;
  return {owner, place << p.share_log};
}

// Bytes that the others send this program.
template <class S>
INLINE int bytes_to_come(const ProductParams& p) {
  return (S::SLABS >> p.share_log) * ((1 << p.share_log) - 1) * S::SLAB_BYTES;
}

// Sends this warp's sums to the program that adds them up.
template <class S>
INLINE void send(
    Room<S> room, const Slab& slab, int rank, const float (&sums)[S::ROWS / 2]) {
  const uint32_t here = room.slab(slab.first + rank) + threadIdx.x % 32 * 16;
  const uint32_t to = peer_address(here, slab.owner);
  const uint32_t barrier = peer_address(room.received(), slab.owner);
#pragma unroll
  for (int i = 0; i < S::ROWS / 2; i += 4) {
    send_4(to + 128 * i, barrier, sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
  }
}

// Writes some of this warp's sums, from ``first`` on, into a slab of rows of 16 floats.
template <int COUNT>
INLINE void turn(uint32_t to, int first, const float (&sums)[COUNT]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < COUNT; ++i) {
    const int at = first + i;
    const int row = at / 4 * 8 + lane % 4 * 2 + at % 2;
    store_float(to + 64 * row + 4 * (lane / 4 + at / 2 % 2 * 8), sums[i]);
  }
}

// Adds the shares of this warp's slab, of which this program's are in ``sums``, in their order, and
// turns them. They come where this program's share would lie, where nobody sends anything.
template <class S>
INLINE void add_up(
    const ProductParams& p, Room<S> room, const Slab& slab, int rank,
    const float (&sums)[S::ROWS / 2]) {
  constexpr int SOME = 8;  // what registers are left for
#pragma unroll
  for (int first = 0; first < S::ROWS / 2; first += SOME) {
    float all[SOME];
#pragma unroll
    for (int i = 0; i < SOME; ++i) all[i] = 0.0f;
#pragma unroll 1
    for (int share = 0; share < 1 << p.share_log; ++share) {
      const uint32_t from = room.slab(slab.first + share) + threadIdx.x % 32 * 16 + 128 * first;
#pragma unroll
      for (int i = 0; i < SOME; i += 4) {
        const float* own = sums + first + i;
        float4 v = make_float4(own[0], own[1], own[2], own[3]);
        if (share != rank) v = load_shared_4(from + 128 * i);
        all[i] += v.x;
        all[i + 1] += v.y;
        all[i + 2] += v.z;
        all[i + 3] += v.w;
      }
    }
    turn(room.slab(slab.first + rank), first, all);
  }
}

template <class Element>
INLINE float rounded(float value) {
  return widened(Element(), Element::pack(value, value) & 0xffff);
}

// SiLU of a gate times what it gates, rounded after each operation.
template <class Element>
INLINE float gated(float gate, float up) {
  const float x = rounded<Element>(gate);
  const float silu = x / (1.0f + exp2_fast(-1.4426950408889634f * x));
  return rounded<Element>(silu) * rounded<Element>(up);
}

template <class Element>
INLINE float4 biased(const ProductParams& p, int column, float4 v) {
  if (p.bias == nullptr) return v;
  const char* from = static_cast<const char*>(p.bias) + 2 * column;
  const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
  v.x += widened(Element(), two.x & 0xffff);
  v.y += widened(Element(), two.x >> 16);
  v.z += widened(Element(), two.y & 0xffff);
  v.w += widened(Element(), two.y >> 16);
  return v;
}

// Writes the 16 columns from ``column`` on of all rows; ``gates`` and ``values`` are slabs that were
// turned, the same one where nothing is gated.
template <class Element, class S>
INLINE void write(const ProductParams& p, uint32_t gates, uint32_t values, int column) {
  for (int row = threadIdx.x % 32; row < p.rows; row += 32) {
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      if (column + i >= p.columns) break;
      float4 v = load_shared_4(values + 64 * row + 4 * i);
      if (S::GATED) {
        const float4 gate = load_shared_4(gates + 64 * row + 4 * i);
        v.x = gated<Element>(gate.x, v.x);
        v.y = gated<Element>(gate.y, v.y);
        v.z = gated<Element>(gate.z, v.z);
        v.w = gated<Element>(gate.w, v.w);
      } else {
        v = biased<Element>(p, column + i, v);
      }
      char* const to = static_cast<char*>(p.out) + 2 * (row * p.out_row + column + i);
      *reinterpret_cast<uint2*>(to) = make_uint2(Element::pack(v.x, v.y), Element::pack(v.z, v.w));
    }
  }
}

// What becomes of the sums of a consumer warp.
template <class Element, class S>
INLINE void finish(
    const ProductParams& p, Room<S> room, const Piece& piece,
    const float (&sums)[S::ROWS / 2]) {
  const Slab slab = slab_of<S>(p);
  const bool mine = slab.owner == piece.rank;
  if (p.share_log == 0) {
    consumers_sync<S::CONSUMERS>();  // the other warpgroup has read the stages too
  } else {
    cluster_sync();  // everybody has
    if (!mine) send<S>(room, slab, piece.rank, sums);
    if (mine) barrier_wait(room.received(), 0);
  }
  if (mine) add_up<S>(p, room, slab, piece.rank, sums);
  const uint32_t own = room.slab(slab.first + piece.rank);
  if (S::GATED) consumers_sync<S::CONSUMERS>();
  __syncwarp();
  const int warp = threadIdx.x / 32;
  if (!mine || (S::GATED && warp >= 4)) return;
  // The values of a gate lie as far behind it as half of the slabs of this program take.
  const uint32_t values = own + (S::GATED ? S::SLABS / 2 * S::SLAB_BYTES : 0);
  write<Element, S>(p, own, values, piece.tile * (S::GATED ? 64 : 128) + warp * 16);
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
    float sums[S::ROWS / 2];
    multiply<Element, S>(room, piece, sums);
    finish<Element, S>(p, room, piece, sums);
  } else {
    bring<S>(p, matrix, rows, room, piece);
    if (p.share_log != 0) cluster_sync();
  }
}
