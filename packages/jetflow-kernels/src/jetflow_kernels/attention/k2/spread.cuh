// As combine.cuh, in builds that are swift: a slab is cut into parts of 32 columns, and parts, not
// slabs, are dealt out to the programs of the cluster. So all warps have something to put together,
// where otherwise one or two of a program would do everything while the others wait.
//
// Every row of a part gets the same sums in the same order as in combine.cuh: the bits are the same.
#pragma once
#include "producer.cuh"
#include "softmax.cuh"

// The parts of this warp's slab.
struct Parts {
  int rank;   // of this program
  int first;  // number of the slab's first part among all of the tile
  int own;    // which one is the first that is put together here; it may not exist
};

template <class S>
INLINE Parts parts_of(const Params& p) {
  // Alike in a warp, which the compiler does not see without the exchange.
  const int slab = __shfl_sync(0xffffffff, int(threadIdx.x / 32), 0) - 4;
  const int first = slab * S::PARTS, rank = rank_of(p);
  const int before = rank - (first - divided(first, p.cluster_inverse) * p.cluster);
  return {rank, first, before < 0 ? before + p.cluster : before};
}

// Bytes that the others send this program; none where its share is the only one.
template <class S>
INLINE int part_bytes_to_come(const Params& p, const Item& item, int rank) {
  const int parts = divided(S::SLABS * S::PARTS - 1 - rank + p.cluster, p.cluster_inverse);
  const int others = item.shares - (rank < item.shares);
  return parts * others * S::PART_BYTES;
}

// Where a part of a program's share arrives: 16 bytes of each lane side by side, four times; then
// the largest score and the sum of weights of both rows of every four lanes, which are the same.
template <class S>
INLINE uint32_t part_slot(const Params& p, const Storage<S>& shared, int part, int share) {
  return shared.part_slot(divided(part, p.cluster_inverse) * p.cluster + share);
}

INLINE uint32_t totals_of_lane() { return 2048 + threadIdx.x % 32 / 4 * 16; }

// Sends this warp's parts to their owners.
template <class S>
INLINE void send_parts(
    const Params& p, const Storage<S>& shared, const Parts& parts, const Rows& rows,
    const float (&sums)[S::DIM / 2]) {
#pragma unroll
  for (int index = 0; index < S::PARTS; ++index) {
    const int part = parts.first + index;
    const int owner = part - divided(part, p.cluster_inverse) * p.cluster;
    if (owner == parts.rank) continue;
    const uint32_t to = peer_address(part_slot<S>(p, shared, part, parts.rank), owner);
    const uint32_t barrier = peer_address(shared.received(), owner);
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float* four = sums + 16 * index + i;
      send_4(to + threadIdx.x % 32 * 16 + 128 * i, barrier, four[0], four[1], four[2], four[3]);
    }
    if (threadIdx.x % 4 == 0) {
      send_4(to + totals_of_lane(), barrier, rows.peak[0], rows.total[0], rows.peak[1],
             rows.total[1]);
    }
  }
}

// All shares of part ``index`` of this warp's slab; the others' have arrived. ``rows`` and ``sums``
// are this program's; ``whole`` and ``all`` become the result.
template <class S>
INLINE void put_part_together(
    const Params& p, const Storage<S>& shared, const Item& item, const Parts& parts, int index,
    const Rows& rows, const float (&sums)[S::DIM / 2], Rows& whole, float (&all)[16]) {
  const uint32_t from = part_slot<S>(p, shared, parts.first + index, 0);
  const float4 own = make_float4(rows.peak[0], rows.total[0], rows.peak[1], rows.total[1]);
  const auto totals_of = [&](int share) {
    return share == parts.rank ? own
                               : load_shared_4(from + share * S::PART_BYTES + totals_of_lane());
  };
  // No register has a number that is known at run time only.
  float mine[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    mine[i] = sums[i];
#pragma unroll
    for (int other = 1; other < S::PARTS; ++other) {
      if (other == index) mine[i] = sums[16 * other + i];
    }
    all[i] = 0.0f;
  }
  whole.peak[0] = whole.peak[1] = -INFINITY;
  whole.total[0] = whole.total[1] = 0.0f;
#pragma unroll 4
  for (int share = 0; share < item.shares; ++share) {
    const float4 its = totals_of(share);
    whole.peak[0] = fmaxf(whole.peak[0], its.x);
    whole.peak[1] = fmaxf(whole.peak[1], its.z);
  }
#pragma unroll 1
  for (int share = 0; share < item.shares; ++share) {
    const float4 its = totals_of(share);
    float values[16];
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      // Where the share is this program's own, nothing has arrived, and nothing is used.
      const float4 four =
          load_shared_4(from + share * S::PART_BYTES + threadIdx.x % 32 * 16 + 128 * i);
      const bool here = share == parts.rank;
      values[i] = here ? mine[i] : four.x;
      values[i + 1] = here ? mine[i + 1] : four.y;
      values[i + 2] = here ? mine[i + 2] : four.z;
      values[i + 3] = here ? mine[i + 3] : four.w;
    }
    // A row that has seen nothing: inf - inf would be NaN.
    const float weight[2] = {
        exp2_fast(its.x - (whole.peak[0] == -INFINITY ? 0.0f : whole.peak[0])),
        exp2_fast(its.z - (whole.peak[1] == -INFINITY ? 0.0f : whole.peak[1]))};
    whole.total[0] = fmaf(its.y, weight[0], whole.total[0]);
    whole.total[1] = fmaf(its.w, weight[1], whole.total[1]);
#pragma unroll
    for (int i = 0; i < 16; ++i) all[i] = fmaf(values[i], weight[i / 2 % 2], all[i]);
  }
}
