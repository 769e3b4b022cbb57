// Which work items there are: one tile of rows of one key head over one piece of one request.
// Every warp finds the items of its program for itself from device memory, all in the same order,
// so that nothing has to be passed between them and one graph serves every batch. The programs of a
// cluster take the same tile, each another piece of it.
#pragma once
#include "clock.cuh"
#include "geometry.cuh"
#include "machine.cuh"

struct Item {
  int request;
  int first;   // row of q
  int count;   // rows of its tree
  int prefix;
  int begin;   // first position of the piece; not below ``end`` where nothing is left for it
  int end;     // one past the last
  int head;    // of the keys
  int tile;    // of the packed rows
  int place;   // first row of the piece among the partial results; -1 where it is the only one
  int shares;  // programs of the cluster that have positions
};

// A window of 32 requests, one a lane. Items come in rising order, so it only moves on.
struct Cursor {
  int request = 0;
  int items = 0;   // of all requests before the window
  int places = 0;  // partial rows of all requests before the window
};

// One request, and how it is cut.
struct Request {
  int first = 0, count = 0, prefix = 0, chunk = 1;
  int pieces = 0;  // that are items of their own
  int tiles = 0;
};

INLINE bool in_clusters(const Params& p) { return p.cluster > 1; }
INLINE int cluster_of(const Params& p) { return divided(blockIdx.x, p.cluster_inverse); }
// Which program of its cluster this is.
INLINE int rank_of(const Params& p) {
  return in_clusters(p) ? blockIdx.x - cluster_of(p) * p.cluster : 0;
}

// What device memory says of a request.
struct Lengths {
  int first = 0;  // row of q
  int next = 0;   // and that of the request behind it
  int prefix = 0;
};

INLINE Lengths lengths_at(const Params& p, int index) {
  return {
      __ldg(p.cu_nodes + index * p.cu_stride), __ldg(p.cu_nodes + (index + 1) * p.cu_stride),
      __ldg(p.prefix_len + index * p.prefix_stride)};
}

// Those of a request alone in builds that are SWIFT, for the producer: asked for here, so that they
// come while the program gets ready. Consumers wait for keys anyway and have no registers to spare.
template <class S>
INLINE Lengths lone_lengths(const Params& p) {
  if (!S::SWIFT || p.requests != 1) return Lengths();
  return {load_here(p.cu_nodes), load_here(p.cu_nodes + p.cu_stride), load_here(p.prefix_len)};
}

template <class S>
INLINE Request request_of(const Params& p, const Lengths& lengths) {
  Request request;
  request.first = lengths.first;
  request.count = lengths.next - lengths.first;
  request.prefix = lengths.prefix;
  request.tiles = (request.count * p.group + S::ROWS - 1) / S::ROWS;
  if (p.cluster > 0) {
    request.chunk = share_length(request.prefix, request.count, p.cluster, p.cluster_inverse);
    request.pieces = 1;
  } else {
    request.chunk = chunk_length(request.prefix, request.count, p.heads);
    request.pieces = request.count > 0 ? request.prefix / request.chunk + 1 : 0;
  }
  return request;
}

INLINE int items_of(const Params& p, const Request& request) {
  return request.pieces * request.tiles * p.kv_heads;
}

template <class S>
INLINE Request request_at(const Params& p, int index) {
  return request_of<S>(p, lengths_at(p, index));
}

// Item ``within`` of a request, whose partial results begin at ``place``. Heads are innermost, then
// row tiles: neighbours in time read the same keys.
INLINE void describe(
    const Params& p, const Request& request, int index, int within, int place, Item& item) {
  const int rest = divided(within, p.kv_heads_inverse);
  const bool listed = p.cluster == 0;
  const int above = listed ? rest / request.tiles : 0;
  const int piece = listed ? above : rank_of(p);
  const int tree = request.count < 64 * p.words ? request.count : 64 * p.words;
  item.request = index;
  item.first = request.first;
  item.count = request.count;
  item.prefix = request.prefix;
  const int length = request.prefix + tree;
  item.head = within - rest * p.kv_heads;
  item.tile = rest - above * request.tiles;
  item.begin = piece * request.chunk;
  item.end = item.begin + request.chunk;
  // The last piece has the remainder of the prefix and the whole tree; shares simply end.
  if (listed ? piece == request.pieces - 1 : item.end > length) item.end = length;
  item.place = request.pieces > 1 ? place + piece * request.count : -1;
  item.shares = 0;
#pragma unroll
  for (int share = 0; share < MOST_SHARES; ++share) {
    item.shares += share * request.chunk < length;
  }
}

INLINE int running_sum(int value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    int before = __shfl_up_sync(0xffffffff, value, step);
    if (lane >= step) value += before;
  }
  return value;
}

// Item ``number`` of a request alone; false past the last one.
template <class S>
INLINE bool lone_item(const Params& p, const Lengths& lengths, int number, Item& item) {
  // Nothing to add up over lanes.
  const Request request = request_of<S>(p, lengths);
  if (number >= items_of(p, request)) return false;
  describe(p, request, 0, number, 0, item);
  return true;
}

// Finds item ``number``; false past the last one. All lanes of a warp together.
template <class S>
INLINE bool find_item(const Params& p, Cursor& cursor, int number, Item& item) {
  if (p.requests == 1) return lone_item<S>(p, lengths_at(p, 0), number, item);
  const int lane = threadIdx.x % 32;
  for (; cursor.request < p.requests; cursor.request += 32) {
    const int mine = cursor.request + lane;
    Request request;
    if (mine < p.requests) request = request_at<S>(p, mine);
    const int items = items_of(p, request);
    const int items_end = cursor.items + running_sum(items, lane);
    const int places = request.pieces * request.count;
    const int places_end = cursor.places + running_sum(places, lane);
    const unsigned beyond = __ballot_sync(0xffffffff, items_end > number);
    if (beyond != 0) {
      const int owner = __ffs(beyond) - 1;
      const int index = cursor.request + owner;
      const int within = number - __shfl_sync(0xffffffff, items_end - items, owner);
      const int place = __shfl_sync(0xffffffff, places_end - places, owner);
      describe(p, request_at<S>(p, index), index, within, place, item);
      return true;
    }
    cursor.items = __shfl_sync(0xffffffff, items_end, 31);
    cursor.places = __shfl_sync(0xffffffff, places_end, 31);
  }
  return false;
}

// The items of a program: those of its cluster, or every so many of the list.
INLINE int first_item(const Params& p) { return in_clusters(p) ? cluster_of(p) : blockIdx.x; }
INLINE int item_step(const Params& p) {
  return in_clusters(p) ? divided(gridDim.x, p.cluster_inverse) : gridDim.x;
}

// find_item() of the producer, which has lone_lengths().
template <class S>
INLINE bool find_item_of(
    const Params& p, const Lengths& lone, Cursor& cursor, int number, Item& item) {
  if (S::SWIFT && p.requests == 1) return lone_item<S>(p, lone, number, item);
  return find_item<S>(p, cursor, number, item);
}
