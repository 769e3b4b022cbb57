// A consumer warpgroup: 64 packed rows of a work item against all tiles of its piece.
//
// Scores of a tile are multiplied while the softmax of the tile before is still being applied to
// its values, so the tensor cores have work while exponentials are taken.
#pragma once
#include "producer.cuh"
#include "softmax.cuh"
#include "combine.cuh"
#include "results.cuh"
#include "spread.cuh"

template <class Element, class S>
struct Consumer : Results<Element, S> {
  static constexpr int SCORES = S::COLUMNS / 2;  // registers of a thread
  using Results<Element, S>::SUMS;
  using Results<Element, S>::p;
  using Results<Element, S>::group;
  using Results<Element, S>::thread;

  const Storage<S> shared;
  Ring<S> keys;
  Ring<S> values;
  // Parities, in one register: of the barrier of what other programs send, of that of the queries.
  uint32_t parities = 0;

  INLINE Consumer(const Params& params, Storage<S> storage)
      : Results<Element, S>(params), shared(storage) {}

  // Brings the queries; rows past the tree's last are 0.
  INLINE void load_queries(const Item& item) const {
    constexpr int SIXTEENTHS = S::DIM / 8;
    constexpr int STEPS = 64 * SIXTEENTHS / 128;
    const int across = thread % SIXTEENTHS;
    uint4 loaded[STEPS];
#pragma unroll
    for (int i = 0; i < STEPS; ++i) {
      const int place = this->packed(item, thread / SIXTEENTHS + i * (128 / SIXTEENTHS));
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

  // The same where the copy engine may bring them.
  INLINE void take_queries(const Item& item, int number) {
    if (p.q_nodes == 0) load_queries(item);
    if (are_brought(p, item, number)) barrier_wait(shared.queries_full(), parities >> 1);
  }

  // They are not needed any more.
  INLINE void give_queries(const Item& item, int number) {
    if (!are_brought(p, item, number)) return;
    release(shared.queries_empty());
    parities ^= 2;
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

  // Whether every row sees every one of some columns from ``start`` on.
  INLINE bool seen_whole(const Item& item, int start, int columns) const {
    return start + columns <= (item.end < item.prefix ? item.end : item.prefix);
  }

  // Weights of the tile at ``start`` with nothing else under way.
  template <int COUNT>
  INLINE void lone_weights(
      const Item& item, int start, Rows& rows, uint32_t (&weights)[COUNT], float (&shrink)[2]) {
    float scores[2 * COUNT];
    // Nothing runs beside this: what a mask takes would be time of the whole program.
    const bool masked = !seen_whole(item, start, 4 * COUNT);
    Seen<COUNT / 16> seen;
    if (masked) seen = seen_in<COUNT / 16>(p, item, rows, start);
    barrier_wait(shared.keys_full(keys.stage), keys.parity);
    STAMP(COUNT == SCORES / 2 ? KEYS : HALF_KEYS);
    start_scores(scores);
    mma_wait<0>();
    hold(scores);
    STAMP(COUNT == SCORES / 2 ? FIRST_SCORES : HALF_SCORES);
    release_keys();
    if (masked) mask_scores(seen, scores);
    fold_scores(p.factor, rows, scores, shrink);
    pack_weights<Element>(scores, weights);
    hold(weights);
    STAMP(COUNT == SCORES / 2 ? WEIGHTS : HALF_WEIGHTS);
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

  // Scores of the tile at ``start`` while the sums of the tile before, which has ``weights``, are
  // under way; ``next`` are those of this one, which may be the same registers. No branch may lie
  // between the two waits: the compiler would then put the second one first.
  template <bool MASKED, int COUNT>
  INLINE void next_tile(
      const Item& item, int start, Rows& rows, uint32_t (&weights)[SCORES / 2],
      uint32_t (&next)[COUNT], float (&sums)[SUMS]) {
    float scores[2 * COUNT], shrink[2];
    Seen<COUNT / 16> seen;
    if (MASKED) seen = seen_in<COUNT / 16>(p, item, rows, start);
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
    pack_weights<Element>(scores, next);
  }

  INLINE void attend(const Item& item, Rows& rows, float (&sums)[SUMS]) {
    float shrink[2];
    uint32_t half[16];  // weights of the half tile with which a piece may end
    int start = item.begin;
    if (!is_narrow<S>(item, start)) {
      uint32_t weights[SCORES / 2];
      lone_weights(item, start, rows, weights, shrink);
      start += S::COLUMNS;
      for (; seen_whole(item, start, S::COLUMNS); start += S::COLUMNS) {
        next_tile<false>(item, start, rows, weights, weights, sums);
        STAMP(tile_phase<S>(item, start));
      }
      for (; start < item.end && !is_narrow<S>(item, start); start += S::COLUMNS) {
        next_tile<true>(item, start, rows, weights, weights, sums);
        STAMP(tile_phase<S>(item, start));
      }
      if (S::COLUMNS == 64 || start >= item.end) {
        lone_sums(weights, sums);
        return;
      }
      next_tile<true>(item, start, rows, weights, half, sums);
      STAMP(HALF_WEIGHTS);
    } else {
      lone_weights(item, start, rows, half, shrink);
    }
    lone_sums(half, sums);
  }

  // Results of all programs of the cluster; false where another one has this warp's rows.
  INLINE bool gathered(const Item& item, Rows& rows, float (&sums)[SUMS]) {
    const Slab slab = slab_of(p);
    const int bytes = bytes_to_come<S>(p, item, slab.rank);
    if (bytes > 0 && threadIdx.x == 128) {
      barrier_expect(shared.received(), bytes);
      barrier_arrive(shared.received());
    }
    // All programs are through with their tiles.
    cluster_sync();
    STAMP(CLUSTER);
    const bool mine = slab.owner == slab.rank;
    if (!mine && slab.rank < item.shares) send<S>(p, shared, slab, rows, sums);
    STAMP(SENT);
    if (bytes > 0) {
      // Nobody ends, or takes the next item, before all that is sent here has arrived.
      barrier_wait(shared.received(), parities & 1);
      parities ^= 1;
    }
    STAMP(ARRIVED);
    if (mine) put_together<S>(p, shared, item, slab, rows, sums);
    STAMP(TOGETHER);
    return mine;
  }

  // The same where S::SWIFT, part by part, and stored.
  INLINE void gather_parts(const Item& item, const Rows& rows, const float (&sums)[SUMS]) {
    const Parts parts = parts_of<S>(p);
    const int bytes = part_bytes_to_come<S>(p, item, parts.rank);
    if (bytes > 0 && threadIdx.x == 128) {
      barrier_expect(shared.received(), bytes);
      barrier_arrive(shared.received());
    }
    // All programs are through with their tiles.
    cluster_sync();
    STAMP(CLUSTER);
    if (parts.rank < item.shares) send_parts<S>(p, shared, parts, rows, sums);
    STAMP(SENT);
    if (bytes > 0) {
      // Nobody ends, or takes the next item, before all that is sent here has arrived.
      barrier_wait(shared.received(), parities & 1);
      parities ^= 1;
    }
    STAMP(ARRIVED);
    // All lanes have the same parts, which the compiler believes by the vote.
#pragma unroll 1
    for (int part = parts.own; __ballot_sync(0xffffffff, part < S::PARTS); part += p.cluster) {
      Rows whole;
      float all[16];
      put_part_together<S>(p, shared, item, parts, part, rows, sums, whole, all);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const Finished done = this->finished(item, whole, row);
        this->store_part(item, done, row, part, all, 0);
        if (part == 0) this->store_lse(item, done);
      }
    }
    STAMP(TOGETHER);
  }

  INLINE void run() {
    Cursor cursor;
    Item item;
    for (int number = first_item(p); find_item<S>(p, cursor, number, item);
         number += item_step(p)) {
      STAMP(ITEM);
      Rows rows;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int node = divided(this->packed(item, this->own_row(row)), p.group_inverse);
        rows.words[row] =
            node < item.count ? p.ancestors + (item.first + node) * p.words_row : nullptr;
        if (item.end > item.prefix && rows.words[row]) prefetch_line(rows.words[row]);
        rows.peak[row] = -INFINITY;
        rows.total[row] = 0.0f;
      }
      if constexpr (S::SWIFT) take_queries(item, number); else load_queries(item);
      float sums[SUMS];
#pragma unroll
      for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
      STAMP(QUERIES);
      if (item.begin < item.end) attend(item, rows, sums);
      if (S::SWIFT) give_queries(item, number);
      STAMP(SUMS);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        rows.total[row] += __shfl_xor_sync(0xffffffff, rows.total[row], 1);
        rows.total[row] += __shfl_xor_sync(0xffffffff, rows.total[row], 2);
      }
      bool mine = true;
      if (in_clusters(p)) {
        if constexpr (S::SWIFT) {
          gather_parts(item, rows, sums);
          mine = false;
        } else {
          mine = gathered(item, rows, sums);
        }
        // The next tiles come over what was read here.
        publish_shared();
        consumers_done<S::THREADS>();
      }
      if (mine) this->store(item, rows, sums);
      __syncwarp();
      STAMP(STORED);
    }
    STAMP(NO_ITEM);
    this->store_padding();
    STAMP(DEVICE_END);
  }
};
