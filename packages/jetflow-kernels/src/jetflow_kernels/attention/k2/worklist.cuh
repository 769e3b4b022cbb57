// Which work items there are: one tile of rows of one key head over one piece of one request.
// Every warp finds the items of its program for itself from device memory, all in the same order,
// so that nothing has to be passed between them and one graph serves every batch.
#pragma once
#include "geometry.cuh"
#include "machine.cuh"

struct Item {
  int request;
  int first;   // row of q
  int count;   // rows of its tree
  int prefix;
  int begin;   // first position of the piece
  int end;     // one past the last
  int head;    // of the keys
  int tile;    // of the packed rows
  int place;   // first row of the piece among the partial results
  bool split;  // whether there are other pieces
};

// A window of 32 requests, one a lane. Items come in rising order, so it only moves on.
struct Cursor {
  int request = 0;
  int items = 0;   // of all requests before the window
  int places = 0;  // partial rows of all requests before the window
};

INLINE int running_sum(int value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    int before = __shfl_up_sync(0xffffffff, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

// Finds item ``number``; false past the last one. All lanes of a warp together.
template <class S>
INLINE bool find_item(const Params& p, Cursor& cursor, int number, Item& item) {
  const int lane = threadIdx.x % 32;
  const int kv_heads = p.heads / p.group;
  for (; cursor.request < p.requests; cursor.request += 32) {
    int mine = cursor.request + lane;
    int first = 0, count = 0, prefix = 0, chunk = 1, pieces = 0;
    if (mine < p.requests) {
      first = __ldg(p.cu_nodes + mine * p.cu_stride);
      count = __ldg(p.cu_nodes + (mine + 1) * p.cu_stride) - first;
      prefix = __ldg(p.prefix_len + mine * p.prefix_stride);
      chunk = chunk_length(prefix, count, p.heads);
      pieces = count > 0 ? prefix / chunk + 1 : 0;
    }
    int tiles = (count * p.group + S::ROWS - 1) / S::ROWS;
    int items = pieces * tiles * kv_heads;
    int items_end = cursor.items + running_sum(items, lane);
    int places = pieces * count;
    int places_end = cursor.places + running_sum(places, lane);
    unsigned beyond = __ballot_sync(0xffffffff, items_end > number);
    if (beyond != 0) {
      int owner = __ffs(beyond) - 1;
      auto of_owner = [&](int value) { return __shfl_sync(0xffffffff, value, owner); };
      item.request = cursor.request + owner;
      item.first = of_owner(first);
      item.count = of_owner(count);
      item.prefix = of_owner(prefix);
      chunk = of_owner(chunk);
      pieces = of_owner(pieces);
      tiles = of_owner(tiles);
      int within = number - of_owner(items_end - items);
      // Row tiles innermost: neighbours in time read the same keys.
      item.tile = within % tiles;
      item.head = within / tiles % kv_heads;
      int piece = within / (tiles * kv_heads);
      int tree = item.count < 64 * p.words ? item.count : 64 * p.words;
      item.begin = piece * chunk;
      item.end = piece == pieces - 1 ? item.prefix + tree : item.begin + chunk;
      item.place = of_owner(places_end - places) + piece * item.count;
      item.split = pieces > 1;
      return true;
    }
    cursor.items = __shfl_sync(0xffffffff, items_end, 31);
    cursor.places = __shfl_sync(0xffffffff, places_end, 31);
  }
  return false;
}
