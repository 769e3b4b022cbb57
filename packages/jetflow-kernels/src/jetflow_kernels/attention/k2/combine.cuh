// What the programs of a cluster do when each has gone through its share of a request's positions:
// every program puts some of the tile's slabs together (16 rows, those of one warp), whose shares the
// others send it.
//
// Nothing is written for others to read: everything is sent, straight from registers to the memory
// and the barrier of the program that needs it, so that nobody has to fence or to fetch. A barrier of
// the cluster says beforehand that all are done with their tiles, where the results arrive.
//
// Shares are added in their order, and whether a share has any positions follows from the request
// alone, so a row has the same bits whoever adds it up and whatever else is in the batch.
#pragma once
#include "producer.cuh"
#include "softmax.cuh"

// The slab of this warp, and where it is put together.
struct Slab {
  int rank;   // of this program
  int owner;  // program that puts it together
  int place;  // among the owner's slabs
};

INLINE Slab slab_of(const Params& p) {
  // Alike in a warp, which the compiler does not see without the exchange.
  const int index = __shfl_sync(0xffffffff, int(threadIdx.x / 32), 0) - 4;
  const int place = divided(index, p.cluster_inverse);
  return {rank_of(p), index - place * p.cluster, place};
}

// Bytes that the others send this program; none where its share is the only one.
template <class S>
INLINE int bytes_to_come(const Params& p, const Item& item, int rank) {
  const int slabs = divided(S::SLABS - 1 - rank + p.cluster, p.cluster_inverse);
  const int others = item.shares - (rank < item.shares);
  return slabs * others * S::SLOT_BYTES;
}

// Sends this warp's results to their owner.
template <class S>
INLINE void send(
    const Params& p, const Storage<S>& shared, const Slab& slab, const Rows& rows,
    const float (&sums)[S::DIM / 2]) {
  const uint32_t here = shared.slot(slab.place * p.cluster + slab.rank) + threadIdx.x % 32 * 16;
  const uint32_t to = peer_address(here, slab.owner);
  const uint32_t barrier = peer_address(shared.received(), slab.owner);
#pragma unroll
  for (int i = 0; i < S::DIM / 2; i += 4) {
    send_4(to + 128 * i, barrier, sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
  }
  send_4(to + 64 * S::DIM, barrier, rows.peak[0], rows.total[0], rows.peak[1], rows.total[1]);
}

// All shares of this warp's slab; the others' have arrived. ``rows`` and ``sums`` hold this
// program's and then the result.
template <class S>
INLINE void put_together(
    const Params& p, const Storage<S>& shared, const Item& item, const Slab& slab, Rows& rows,
    float (&sums)[S::DIM / 2]) {
  const uint32_t from = shared.slot(slab.place * p.cluster) + threadIdx.x % 32 * 16;
  const float4 own = make_float4(rows.peak[0], rows.total[0], rows.peak[1], rows.total[1]);
  const auto totals_of = [&](int share) {
    return share == slab.rank ? own : load_shared_4(from + share * S::SLOT_BYTES + 64 * S::DIM);
  };
  float peak[2] = {-INFINITY, -INFINITY};
#pragma unroll 1
  for (int share = 0; share < item.shares; ++share) {
    const float4 its = totals_of(share);
    peak[0] = fmaxf(peak[0], its.x);
    peak[1] = fmaxf(peak[1], its.z);
  }
  float total[2] = {0.0f, 0.0f};
  float all[S::DIM / 2];
#pragma unroll
  for (int i = 0; i < S::DIM / 2; ++i) all[i] = 0.0f;
#pragma unroll 1
  for (int share = 0; share < item.shares; ++share) {
    const float4 its = totals_of(share);
    // A row that has seen nothing: inf - inf would be NaN.
    const float weight[2] = {
        exp2_fast(its.x - (peak[0] == -INFINITY ? 0.0f : peak[0])),
        exp2_fast(its.z - (peak[1] == -INFINITY ? 0.0f : peak[1]))};
    total[0] = fmaf(its.y, weight[0], total[0]);
    total[1] = fmaf(its.w, weight[1], total[1]);
    if (share == slab.rank) {
#pragma unroll
      for (int i = 0; i < S::DIM / 2; ++i) all[i] = fmaf(sums[i], weight[i / 2 % 2], all[i]);
    } else {
#pragma unroll
      for (int i = 0; i < S::DIM / 2; i += 4) {
        const float4 four = load_shared_4(from + share * S::SLOT_BYTES + 128 * i);
        all[i] = fmaf(four.x, weight[0], all[i]);
        all[i + 1] = fmaf(four.y, weight[0], all[i + 1]);
        all[i + 2] = fmaf(four.z, weight[1], all[i + 2]);
        all[i + 3] = fmaf(four.w, weight[1], all[i + 3]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < S::DIM / 2; ++i) sums[i] = all[i];
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    rows.peak[row] = peak[row];
    rows.total[row] = total[row];
  }
}
