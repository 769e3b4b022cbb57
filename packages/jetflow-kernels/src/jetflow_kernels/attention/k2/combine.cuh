// What the programs of a cluster do when each has gone through its share of a request's positions:
// every program puts a share of the tile's rows together, reading the shared memory of all others.
//
// Shares are added in their order, and whether a share has any positions follows from the request
// alone, so a row has the same bits whoever adds it up and whatever else is in the batch.
#pragma once
#include "producer.cuh"
#include "wgmma.cuh"

// Eight values of a row, put together.
struct Combined {
  float values[8];
  float log2_sum;
};

template <class S>
INLINE Combined combined(
    const Params& p, const Storage<S>& shared, const Item& item, int row, int eight) {
  float2 totals[MOST_SHARES];
  float4 values[MOST_SHARES][2];
  // All loads first: each takes some 200 cycles.
#pragma unroll
  for (int share = 0; share < MOST_SHARES; ++share) {
    totals[share] = make_float2(-INFINITY, 0.0f);
    values[share][0] = values[share][1] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    // Programs without positions have left nothing.
    if (share < item.shares) {
      totals[share] = load_peer_2(peer_address(shared.left_totals(row), share));
      const uint32_t there = peer_address(shared.left_row(row) + 32 * eight, share);
      values[share][0] = load_peer_4(there);
      values[share][1] = load_peer_4(there + 16);
    }
  }
  float peak = -INFINITY;
#pragma unroll
  for (int share = 0; share < MOST_SHARES; ++share) peak = fmaxf(peak, totals[share].x);
  // A row that has seen nothing: inf - inf would be NaN.
  const float base = peak == -INFINITY ? 0.0f : peak;
  float total = 0.0f;
  Combined sum = {};
#pragma unroll
  for (int share = 0; share < MOST_SHARES; ++share) {
    const float weight = exp2_fast(totals[share].x - base);
    total = fmaf(totals[share].y, weight, total);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 four = values[share][half];
      sum.values[4 * half] = fmaf(four.x, weight, sum.values[4 * half]);
      sum.values[4 * half + 1] = fmaf(four.y, weight, sum.values[4 * half + 1]);
      sum.values[4 * half + 2] = fmaf(four.z, weight, sum.values[4 * half + 2]);
      sum.values[4 * half + 3] = fmaf(four.w, weight, sum.values[4 * half + 3]);
    }
  }
  const bool empty = total == 0.0f;
  const float part = empty ? 1.0f : 1.0f / total;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum.values[i] *= part;
  sum.log2_sum = empty ? -INFINITY : peak + log2_fast(total);
  return sum;
}

// Where eight values of a row go, and what; nowhere for rows past the tree's last.
struct Finished {
  uint4* to = nullptr;
  uint4 values;
  float* lse = nullptr;
  float log_sum;
  INLINE void store() const {
    if (to != nullptr) *to = values;
    if (lse != nullptr) *lse = log_sum;
  }
};

template <class Element, class S>
INLINE Finished finished(
    const Params& p, const Storage<S>& shared, const Item& item, int row, int eight) {
  constexpr float LN_2 = 0.6931471805599453f;
  Finished one;
  const int place = item.tile * S::ROWS + row;
  const int node = divided(place, p.group_inverse);
  if (node >= item.count) return one;
  const int head = item.head * p.group + (place - node * p.group);
  const Combined sum = combined<S>(p, shared, item, row, eight);
  const int64_t at = (item.first + node) * p.out_row + head * p.out_head + 8 * eight;
  one.to = reinterpret_cast<uint4*>(static_cast<char*>(p.out) + 2 * at);
  one.values = make_uint4(
      Element::pack(sum.values[0], sum.values[1]), Element::pack(sum.values[2], sum.values[3]),
      Element::pack(sum.values[4], sum.values[5]), Element::pack(sum.values[6], sum.values[7]));
  if (p.lse != nullptr && eight == 0) {
    one.lse = p.lse + (item.first + node) * p.lse_row + head * p.lse_head;
    one.log_sum = sum.log2_sum * LN_2;
  }
  return one;
}

// By all consumers, between the two barriers of the cluster; ends with the second one.
template <class Element, class S>
INLINE void combine_shares(const Params& p, const Storage<S>& shared, const Item& item) {
  constexpr int EIGHTS = S::DIM / 8;
  const int rows = S::ROWS >> p.cluster_bits;
  const int first = (blockIdx.x & ((1 << p.cluster_bits) - 1)) * rows;
  // A store stays behind the loads that follow it, and the last one behind the barrier, which would
  // wait for it otherwise.
  Finished last;
  for (int i = threadIdx.x - 128; i < rows * EIGHTS; i += 128 * S::CONSUMERS) {
    last.store();
    last = finished<Element, S>(p, shared, item, first + i / EIGHTS, i % EIGHTS);
  }
  // The next tiles come by bulk copies over what was written here by ordinary stores.
  publish_shared();
  cluster_arrive();
  last.store();
  cluster_wait();
}
