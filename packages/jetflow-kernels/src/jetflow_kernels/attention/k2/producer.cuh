// The producer warpgroup: brings the tiles of keys and values of every work item, in order.
//
// Tiles start at multiples of 64 positions from the beginning of a request, and stay so behind the
// prefix: the tree needs no tiles of its own, since the words of its mask can be shifted to any
// column (geometry.cuh). So every box of 8 to 64 rows lies within one page, where the copy engine
// brings it to a whole number of swizzle atoms; boxes past the end are taken from outside of the
// page, which the engine fills with zeros. What is left is the box in which a piece ends. Its keys
// past the end are masked, whatever they are. Its values would be multiplied by 0, and 0 * NaN is
// NaN, so this one box of values is brought by ordinary copies, with zeros past the end.
//
// Each of the four warps brings every fourth box of a tile and arrives once at the tile's barrier.
#pragma once
#include "queries.cuh"
#include "worklist.cuh"

// Whether only the first half of the tile at ``start`` is brought and multiplied: the last tile of a
// piece may have no more columns.
template <class S>
INLINE bool is_narrow(const Item& item, int start) {
  return S::COLUMNS == 128 && item.end - start <= 64;
}

// What one lane brings of a tile.
struct Box {
  bool mine;
  int value, slot, page;  // coordinates in the pool
  int first;              // position of its first row
  int to;                 // bytes from the beginning of the tile
};

template <class S>
INLINE Box box_of(const Params& p, const Item& item, const int32_t* table, int start) {
  const int index = threadIdx.x / 32 + 4 * (threadIdx.x % 32);
  const int half = box_half(index, S::HALVES);
  const int row = box_row(index, S::HALVES, p.box);
  Box box;
  box.mine = row < (is_narrow<S>(item, start) ? 64 : S::COLUMNS);
  box.value = 64 * half;
  box.first = start + row;
  box.to = half * S::HALF_BYTES + row * 128;
  box.page = 0;
  box.slot = p.page;  // outside of every page: zeros
  if (box.mine && box.first < item.end) {
    const int page = divided(box.first, p.page_inverse);
    box.page = __ldg(table + page * p.table_entry);
    box.slot = box.first - page * p.page;
  }
  return box;
}

// Starts the copies of this warp's boxes; the lane's own where ``wanted``.
INLINE void copy_boxes(
    const Params& p, const TensorMap* map, const Box& box, bool wanted, uint32_t tile,
    uint32_t full, int head) {
  const unsigned lanes = __ballot_sync(0xffffffff, wanted);
  if (threadIdx.x % 32 == 0) barrier_expect(full, __popc(lanes) * p.box * 128);
  __syncwarp();
  if (wanted) copy_box(tile + box.to, map, full, box.value, box.slot, head, box.page);
}

// The box of values in which the piece ends, by all threads; zeros past the end.
template <class S>
INLINE void copy_last_values(
    const Params& p, const Item& item, const int32_t* table, int first, int row, uint32_t tile) {
  constexpr int SIXTEENTHS = S::DIM / 8;
  const int entry = divided(first, p.page_inverse);
  const int64_t page = __ldg(table + entry * p.table_entry);
  const int slot = first - entry * p.page;
  const char* from = static_cast<const char*>(p.v_pool) +
                     2 * (page * p.v_page + slot * p.v_slot + item.head * p.v_head);
  for (int i = threadIdx.x; i < p.box * SIXTEENTHS; i += 128) {
    const int down = i / SIXTEENTHS;
    const int across = i % SIXTEENTHS;
    const bool real = first + down < item.end;
    const char* at = from + (real ? 2 * (down * p.v_slot + across * 8) : 0);
    copy_16(tile + across / 8 * S::HALF_BYTES + swizzled(row + down, across % 8), at, real);
  }
  copies_done();
  publish_shared();
}

template <class S>
INLINE void produce(
    const Params& p, Lengths lone, const TensorMap* keys, const TensorMap* values,
    const TensorMap* queries, Storage<S> shared) {
  const bool first_lane = threadIdx.x % 32 == 0;
  Cursor cursor;
  Item item;
  Ring<S> ring;
  uint32_t read = 1;  // parity of the barrier that says that queries were read
  int number = first_item(p);
  for (; find_item_of<S>(p, lone, cursor, number, item); number += item_step(p)) {
    STAMP(PRODUCER_ITEM);
    const int32_t* table = p.page_table + item.request * p.table_request;
    const int row = item.first + node_of<S>(p, item.tile);
    const int ragged = item.end & (p.box - 1);
    const int last_box = ragged != 0 ? item.end - ragged : -1;
    for (int start = item.begin; start < item.end; start += S::COLUMNS, ring.advance()) {
      const Box box = box_of<S>(p, item, table, start);
      STAMP(PRODUCER_PAGE);
      barrier_wait(shared.keys_empty(ring.stage), ring.parity ^ 1);
      copy_boxes(p, keys, box, box.mine, shared.keys(ring.stage), shared.keys_full(ring.stage),
                 item.head);
      if (first_lane) barrier_arrive(shared.keys_full(ring.stage));
      if (start == item.begin) {
        STAMP(PRODUCER_COPIES);
        // Behind the first keys, for which consumers that are at the item before leave room.
        if (S::SWIFT) next_queries<S>(p, queries, shared, row, item.head, number, read);
      }

      barrier_wait(shared.values_empty(ring.stage), ring.parity ^ 1);
      copy_boxes(p, values, box, box.mine && box.first != last_box, shared.values(ring.stage),
                 shared.values_full(ring.stage), item.head);
      if (last_box >= start && last_box < start + S::COLUMNS) {
        copy_last_values<S>(p, item, table, last_box, last_box - start,
                            shared.values(ring.stage));
        __syncwarp();
      }
      if (first_lane) barrier_arrive(shared.values_full(ring.stage));
    }
    STAMP(PRODUCER_LAST);
    if (in_clusters(p)) {
      // Results of the others lie where the tiles were until the consumers have read them.
      cluster_sync();
      wait_for_consumers<S::THREADS>();
    }
    if (S::SWIFT) {
      read ^= are_brought(p, item, number);
      lone = lone_lengths<S>(p);
    }
  }
  // Nobody ends while copies are under way, though no item needs them.
  if (S::SWIFT && known_ahead(p, number)) barrier_wait(shared.queries_full(), 0);
}
