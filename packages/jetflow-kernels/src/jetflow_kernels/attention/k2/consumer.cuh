// A consumer warpgroup: 64 packed rows of a work item against all tiles of its piece.
//
// Scores of a tile are multiplied while the softmax of the tile before is still being applied to
// its values, so the tensor cores have work while exponentials are taken.
#pragma once
#include "producer.cuh"
#include "softmax.cuh"
#include "combine.cuh"

template <class Element, class S>
struct Consumer {
  static constexpr int SCORES = S::COLUMNS / 2;  // registers of a thread
  static constexpr int SUMS = S::DIM / 2;

  const Params& p;
  const Storage<S> shared;
  const int group;   // which warpgroup
  const int thread;  // of the warpgroup
  Ring<S> keys;
  Ring<S> values;

  INLINE Consumer(const Params& params, Storage<S> storage)
      : p(params), shared(storage), group(threadIdx.x / 128 - 1), thread(threadIdx.x % 128) {}

  // Packed row of the item that lies in row ``row`` of this warpgroup.
  INLINE int packed(const Item& item, int row) const {
    return item.tile * S::ROWS + group * 64 + row;
  }

  // Row of this warpgroup that this thread holds as its ``row``-th of two.
  INLINE int own_row(int row) const { return thread / 32 * 16 + thread % 32 / 4 + 8 * row; }

  // Brings the queries; rows past the tree's last are 0.
  INLINE void load_queries(const Item& item) const {
    constexpr int SIXTEENTHS = S::DIM / 8;
    constexpr int STEPS = 64 * SIXTEENTHS / 128;
    const int across = thread % SIXTEENTHS;
    uint4 loaded[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int place = packed(item, thread / SIXTEENTHS + i * (128 / SIXTEENTHS));
      const int node = divided(place, p.group_inverse);
      const int head = item.head * p.group + (place - node * p.group);
      loaded[i] = make_uint4(0, 0, 0, 0);
      if (node < item.count) {
        const char* at = static_cast<const char*>(p.q) +
                         2 * ((item.first + node) * p.q_row + head * p.q_head + across * 8);
        loaded[i] = __ldg(reinterpret_cast<const uint4*>(at));
      }
    }
    // All warps are done with the queries of the item before.
    group_sync(group);
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int row = thread / SIXTEENTHS + i * (128 / SIXTEENTHS);
      uint4 value = loaded[i];
      value.x = value.x & p.q_keep ^ p.q_flip;
      value.y = value.y & p.q_keep ^ p.q_flip;
      value.z = value.z & p.q_keep ^ p.q_flip;
      value.w = value.w & p.q_keep ^ p.q_flip;
      store_shared(
          shared.q(group) + across / 8 * S::Q_HALF_BYTES + swizzled(row, across % 8), value);
    }
    publish_shared();
    group_sync(group);
  }

  template <int COUNT>
  INLINE void start_scores(float (&scores)[COUNT]) const {
    const uint64_t left = matrix(shared.q(group), 16);
    const uint64_t right = matrix(shared.keys(keys.stage), 16);
    mma_fence();
#pragma unroll
    for (int step = 0; step < S::DIM / 16; ++step) {
      // 16 values are 32 bytes of a row; addresses in a matrix count sixteens of bytes.
      const int half = step / 4, within = step % 4 * 32;
      mma_shared(Element(), scores, left + (half * S::Q_HALF_BYTES + within) / 16,
                 right + (half * S::HALF_BYTES + within) / 16, step != 0);
    }
    mma_commit();
  }

  template <int COUNT>
  INLINE void start_sums(float (&sums)[SUMS], const uint32_t (&weights)[COUNT]) const {
    const uint64_t right = matrix(shared.values(values.stage), S::HALF_BYTES);
    mma_fence();
#pragma unroll
    for (int step = 0; step < COUNT / 4; ++step) {
      // 16 rows of 128 bytes.
      mma_registers(Element(), sums, weights + 4 * step, right + step * 2048 / 16);
    }
    mma_commit();
  }

  INLINE void release(uint32_t barrier) const {
    __syncwarp();
    if (thread % 32 == 0) barrier_arrive(barrier);
  }

  INLINE void release_keys() {
    release(shared.keys_empty(keys.stage));
    keys.advance();
  }

  INLINE void release_values() {
    release(shared.values_empty(values.stage));
    values.advance();
  }

  // Whether every row sees every column of the tile at ``start``.
  INLINE bool seen_whole(const Item& item, int start) const {
    return start + S::COLUMNS <= (item.end < item.prefix ? item.end : item.prefix);
  }

  // Weights of the tile at ``start`` with nothing else under way.
  template <int COUNT>
  INLINE void lone_weights(
      const Item& item, int start, Rows& rows, uint32_t (&weights)[COUNT], float (&shrink)[2]) {
    float scores[2 * COUNT];
    const auto seen = seen_in<COUNT / 16>(p, item, rows, start);
    barrier_wait(shared.keys_full(keys.stage), keys.parity);
    start_scores(scores);
    mma_wait<0>();
    hold(scores);
    release_keys();
    mask_scores(seen, scores);
    fold_scores(p.factor, rows, scores, shrink);
    pack_weights<Element>(scores, weights);
  }

  // Sums of the tile before, with nothing else under way.
  template <int COUNT>
  INLINE void lone_sums(uint32_t (&weights)[COUNT], float (&sums)[SUMS]) {
    barrier_wait(shared.values_full(values.stage), values.parity);
    hold(sums);
    hold(weights);
    start_sums(sums, weights);
    mma_wait<0>();
    hold(sums);
    hold(weights);
    release_values();
  }

  // Scores of the tile at ``start`` while the sums of the tile before are under way. No branch may
  // lie between the two waits: the compiler would then put the second one first.
  template <bool MASKED>
  INLINE void next_tile(
      const Item& item, int start, Rows& rows, uint32_t (&weights)[SCORES / 2],
      float (&sums)[SUMS]) {
    float scores[SCORES], shrink[2];
    Seen<SCORES / 32> seen;
    if (MASKED) seen = seen_in<SCORES / 32>(p, item, rows, start);
    barrier_wait(shared.keys_full(keys.stage), keys.parity);
    hold(sums);
    hold(weights);
    start_scores(scores);
    barrier_wait(shared.values_full(values.stage), values.parity);
    start_sums(sums, weights);
    mma_wait<1>();
    hold(scores);
    release_keys();
    if (MASKED) mask_scores(seen, scores);
    fold_scores(p.factor, rows, scores, shrink);
    finish_before(shared.base, rows.total[0] + rows.total[1]);
    mma_wait<0>();
    hold(sums);
    hold(weights);
    release_values();
    shrink_sums(sums, shrink);
    pack_weights<Element>(scores, weights);
  }

  INLINE void attend(const Item& item, Rows& rows, float (&sums)[SUMS]) {
    float shrink[2];
    int start = item.begin;
    if (!is_narrow<S>(item, start)) {
      uint32_t weights[SCORES / 2];
      lone_weights(item, start, rows, weights, shrink);
      start += S::COLUMNS;
      for (; seen_whole(item, start); start += S::COLUMNS) {
        next_tile<false>(item, start, rows, weights, sums);
      }
      for (; start < item.end && !is_narrow<S>(item, start); start += S::COLUMNS) {
        next_tile<true>(item, start, rows, weights, sums);
      }
      lone_sums(weights, sums);
    }
    if (S::COLUMNS == 128 && start < item.end) {
      uint32_t weights[16];
      lone_weights(item, start, rows, weights, shrink);
      shrink_sums(sums, shrink);
      lone_sums(weights, sums);
    }
  }

  INLINE void store(const Item& item, Rows& rows, float (&sums)[SUMS]) const {
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int place = packed(item, own_row(row));
      const int node = divided(place, p.group_inverse);
      const int head = item.head * p.group + (place - node * p.group);
      const float total = rows.total[row];
      if (node >= item.count) continue;
      const bool empty = total == 0.0f;
      const float share = empty ? 1.0f : 1.0f / total;
      const float log2_sum = empty ? -INFINITY : rows.peak[row] + log2_fast(total);
      const int column = thread % 4 * 2;
      if (item.place >= 0) {
        const int64_t at = int64_t(item.place + node) * p.heads + head;
        float2* to = reinterpret_cast<float2*>(p.partial + at * S::DIM + column);
#pragma unroll
        for (int eight = 0; eight < S::DIM / 8; ++eight) {
          const int i = 4 * eight + 2 * row;
          to[4 * eight] = make_float2(sums[i] * share, sums[i + 1] * share);
        }
        if (thread % 4 == 0) p.partial_lse[at] = log2_sum;
      } else {
        const int64_t at = (item.first + node) * p.out_row + head * p.out_head + column;
        uint32_t* to = reinterpret_cast<uint32_t*>(static_cast<char*>(p.out) + 2 * at);
#pragma unroll
        for (int eight = 0; eight < S::DIM / 8; ++eight) {
          const int i = 4 * eight + 2 * row;
          to[4 * eight] = Element::pack(sums[i] * share, sums[i + 1] * share);
        }
        if (p.lse != nullptr && thread % 4 == 0) {
          constexpr float LN_2 = 0.6931471805599453f;
          p.lse[(item.first + node) * p.lse_row + head * p.lse_head] = log2_sum * LN_2;
        }
      }
    }
  }

  // Leaves this program's results of a tile for its cluster, where the tiles were. All consumers are
  // done with them by then; the barrier of the cluster follows.
  INLINE void leave(const Item& item, const Rows& rows, const float (&sums)[SUMS]) const {
    consumers_sync<S::CONSUMERS>();
    if (item.begin >= item.end) return;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int mine = group * 64 + own_row(row);
      const uint32_t to = shared.left_row(mine) + thread % 4 * 8;
#pragma unroll
      for (int eight = 0; eight < S::DIM / 8; ++eight) {
        const int i = 4 * eight + 2 * row;
        store_shared_2(to + eight * 32, sums[i], sums[i + 1]);
      }
      if (thread % 4 == 0) store_shared_2(shared.left_totals(mine), rows.peak[row], rows.total[row]);
    }
  }

  INLINE void combine(const Item& item) const {
    combine_shares<Element, S>(p, shared, item);
  }

  INLINE void run() {
    Cursor cursor;
    Item item;
    for (int number = first_item(p); find_item<S>(p, cursor, number, item);
         number += item_step(p)) {
      Rows rows;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int node = divided(packed(item, own_row(row)), p.group_inverse);
        rows.words[row] =
            node < item.count ? p.ancestors + (item.first + node) * p.words_row : nullptr;
        if (item.end > item.prefix && rows.words[row]) prefetch_line(rows.words[row]);
        rows.peak[row] = -INFINITY;
        rows.total[row] = 0.0f;
      }
      load_queries(item);
      float sums[SUMS];
#pragma unroll
      for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
      if (item.begin < item.end) attend(item, rows, sums);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        rows.total[row] += __shfl_xor_sync(0xffffffff, rows.total[row], 1);
        rows.total[row] += __shfl_xor_sync(0xffffffff, rows.total[row], 2);
      }
      if (in_clusters(p)) {
        leave(item, rows, sums);
        cluster_arrive();
        cluster_wait();
        combine(item);
      } else {
        store(item, rows, sums);
      }
    }
    store_padding();
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
