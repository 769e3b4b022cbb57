// What becomes of the sums of a tile: shares of a cluster are added, gates applied, the result
// written.
//
// Where a cluster has a tile together, each warp sends its sums, a slab, to the program that adds
// them up, in the order of the shares: no memory but the chip's is used, and no bit depends on who
// comes first. A barrier of the cluster says beforehand that all are done with their stages, where
// slabs arrive; such a program has one tile only.
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
  int32_t tiles;
  int32_t steps;      // stages that cover the inner dimension
  int32_t share_log;  // programs of a cluster: 2 to this power
};

// Who adds up the slabs of this warp, and where they lie there.
struct Slab {
  int owner;
  int first;  // that of share 0; the others follow
};

INLINE Slab slab_of(const ProductParams& p) {
  // Alike in a warp, which the compiler does not see without the exchange.
  const int warp = __shfl_sync(0xffffffff, int(threadIdx.x / 32), 0);
  return {warp & ((1 << p.share_log) - 1), warp >> p.share_log << p.share_log};
}

// Bytes that the others send this program.
template <class S>
INLINE int bytes_to_come(const ProductParams& p) {
  return (S::SLABS >> p.share_log) * ((1 << p.share_log) - 1) * S::SLAB_BYTES;
}

// Where four sums of a lane lie in a slab.
INLINE uint32_t place(int i) { return 128 * i + threadIdx.x % 32 * 16; }

// Sends this warp's sums to the program that adds them up.
template <class S>
INLINE void send(
    Room<S> room, const Slab& slab, int rank, const float (&sums)[S::SUMS]) {
  const uint32_t to = peer_address(room.slab(slab.first + rank), slab.owner);
  const uint32_t barrier = peer_address(room.received(), slab.owner);
#pragma unroll
  for (int i = 0; i < S::SUMS; i += 4) {
    send_4(to + place(i), barrier, sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
  }
}

// Four sums over all shares, in their order; this program's are in ``own``.
template <class S>
INLINE float4 all_shares(
    const ProductParams& p, Room<S> room, const Slab& slab, int rank, int i, float4 own) {
  float4 all = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 1
  for (int share = 0; share < 1 << p.share_log; ++share) {
    float4 v = own;
    if (share != rank) v = load_shared_4(room.slab(slab.first + share) + place(i));
    all.x += v.x;
    all.y += v.y;
    all.z += v.z;
    all.w += v.w;
  }
  return all;
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

// A number of the bias, 0 where there is none.
template <class Element>
INLINE float bias_at(const ProductParams& p, int column) {
  if (p.bias == nullptr || column >= p.columns) return 0.0f;
  return widened(Element(), __ldg(static_cast<const uint16_t*>(p.bias) + column));
}

// Two numbers for each of eight columns, by lanes, become two columns for each of eight rows.
INLINE void write_eight(const ProductParams& p, int first_row, int first_column, uint32_t both) {
  const uint32_t turned = turn_eight(both);
  const int row = first_row + threadIdx.x % 32 / 4;
  const int column = first_column + threadIdx.x % 4 * 2;
  if (row >= p.rows || column >= p.columns) return;
  uint16_t* const to = static_cast<uint16_t*>(p.out) + row * p.out_row + column;
  *reinterpret_cast<uint32_t*>(to) = turned;
}

// Writes a warp's sums, or what ``sum_of`` makes of them: four of a thread are two rows of one column,
// and of the column eight further on.
template <class Element, class S, class Sum>
INLINE void write_tile(
    const ProductParams& p, int tile, const float (&sums)[S::SUMS], Sum sum_of) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int column = tile * (S::COLUMNS >> S::GATED) + warp * (16 >> S::GATED);
  float bias[2] = {0.0f, 0.0f};
  if (!S::GATED) {
    bias[0] = bias_at<Element>(p, column + lane / 4);
    bias[1] = bias_at<Element>(p, column + 8 + lane / 4);
  }
#pragma unroll
  for (int i = 0; i < S::SUMS; i += 4) {
    const float4 v = sum_of(i, make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]));
    if (S::GATED) {
      const float first = gated<Element>(v.x, v.z), second = gated<Element>(v.y, v.w);
      write_eight(p, 2 * i, column, Element::pack(first, second));
    } else {
      write_eight(p, 2 * i, column, Element::pack(v.x + bias[0], v.y + bias[0]));
      write_eight(p, 2 * i, column + 8, Element::pack(v.z + bias[1], v.w + bias[1]));
    }
  }
}

// The end of a tile that is this program's alone.
template <class Element, class S>
INLINE void finish_alone(
    const ProductParams& p, int tile, const float (&sums)[S::SUMS]) {
  write_tile<Element, S>(p, tile, sums, [](int, float4 own) { return own; });
}

// The end of a cluster's only tile.
template <class Element, class S>
INLINE void finish_together(
    const ProductParams& p, Room<S> room, int rank, int tile,
    const float (&sums)[S::SUMS]) {
  const Slab slab = slab_of(p);
  cluster_sync();  // everybody has read the stages
  if (slab.owner != rank) {
    send<S>(room, slab, rank, sums);
    return;
  }
  barrier_wait(room.received(), 0);
  write_tile<Element, S>(p, tile, sums, [&](int i, float4 own) {
    return all_shares<S>(p, room, slab, rank, i, own);
  });
}
