// What a warpgroup of consumers writes, and which rows it has.
#pragma once
#include "softmax.cuh"
#include "worklist.cuh"

// A row when all is added up: where it goes, and what its sums are multiplied by.
struct Finished {
  int node, head;
  bool real;  // whether the tree has such a row
  float share, log2_sum;
};

template <class Element, class S>
struct Results {
  static constexpr int SUMS = S::DIM / 2;  // registers of a thread

  const Params& p;
  const int group;   // which warpgroup
  const int thread;  // of the warpgroup

  INLINE explicit Results(const Params& params)
      : p(params), group(threadIdx.x / 128 - 1), thread(threadIdx.x % 128) {}

  // Packed row of the item that lies in row ``row`` of this warpgroup.
  INLINE int packed(const Item& item, int row) const {
    return item.tile * S::ROWS + group * 64 + row;
  }

  // Row of this warpgroup that this thread holds as its ``row``-th of two.
  INLINE int own_row(int row) const { return thread / 32 * 16 + thread % 32 / 4 + 8 * row; }

  // This thread's ``row``-th row of two.
  INLINE Finished finished(const Item& item, const Rows& rows, int row) const {
    const int place = packed(item, own_row(row));
    const int node = divided(place, p.group_inverse);
    const int head = item.head * p.group + (place - node * p.group);
    // The largest weight of a row is 1, and so is the sum at least, if it has seen anything.
    const float total = rows.total[row];
    const bool empty = total == 0.0f;
    return {
        node, head, node < item.count, empty ? 1.0f : inverse_fast(total),
        empty ? -INFINITY : rows.peak[row] + log2_fast(total)};
  }

  // 32 columns of a row from column ``32 * part`` on, which are ``sums`` from ``16 * first`` on.
  template <int COUNT>
  INLINE void store_part(
      const Item& item, const Finished& done, int row, int part, const float (&sums)[COUNT],
      int first) const {
    char* to = static_cast<char*>(p.out) + 2 * ((item.first + done.node) * p.out_row +
                                                done.head * p.out_head + thread % 4 * 8);
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 16 * first + 4 * i + 2 * row;
      pairs[i] = Element::pack(sums[at] * done.share, sums[at + 1] * done.share);
    }
    // By all lanes, whether or not their rows are real.
    const uint4 eight = regroup(pairs);
    if (done.real) *reinterpret_cast<uint4*>(to + 64 * part) = eight;
  }

  INLINE void store_lse(const Item& item, const Finished& done) const {
    if (done.real && p.lse != nullptr && thread % 4 == 0) {
      constexpr float LN_2 = 0.6931471805599453f;
      p.lse[(item.first + done.node) * p.lse_row + done.head * p.lse_head] = done.log2_sum * LN_2;
    }
  }

  // Finished rows, or partial ones where the item is one of several pieces.
  INLINE void store(const Item& item, Rows& rows, float (&sums)[SUMS]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const Finished done = finished(item, rows, row);
      if (item.place >= 0) {
        if (done.real) {
          store_partial(int64_t(item.place + done.node) * p.heads + done.head, row, done.share,
                        done.log2_sum, sums);
        }
        continue;
      }
#pragma unroll
      for (int part = 0; part < S::PARTS; ++part) store_part(item, done, row, part, sums, part);
      store_lse(item, done);
    }
  }

  INLINE void store_partial(
      int64_t at, int row, float share, float log2_sum, const float (&sums)[SUMS]) const {
    float2* to = reinterpret_cast<float2*>(p.partial + at * S::DIM + thread % 4 * 2);
#pragma unroll
    for (int eight = 0; eight < S::DIM / 8; ++eight) {
      const int i = 4 * eight + 2 * row;
      to[4 * eight] = make_float2(sums[i] * share, sums[i + 1] * share);
    }
    if (thread % 4 == 0) p.partial_lse[at] = log2_sum;
  }

  // Rows behind the last request: zeros that see nothing.
  INLINE void store_padding() const {
    const int used = __ldg(p.cu_nodes + p.requests * p.cu_stride);
    constexpr int PAIRS = S::DIM / 2;
    for (int row = used + blockIdx.x; row < p.rows; row += gridDim.x) {
      for (int i = threadIdx.x - 128; i < p.heads * PAIRS; i += 128 * S::CONSUMERS) {
        const int64_t at = row * p.out_row + i / PAIRS * p.out_head + i % PAIRS * 2;
        *reinterpret_cast<uint32_t*>(static_cast<char*>(p.out) + 2 * at) = 0;
      }
      if (p.lse != nullptr) {
        for (int head = threadIdx.x - 128; head < p.heads; head += 128 * S::CONSUMERS) {
          p.lse[row * p.lse_row + head * p.lse_head] = -INFINITY;
        }
      }
    }
  }
};
