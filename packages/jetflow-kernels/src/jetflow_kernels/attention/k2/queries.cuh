// Queries that the copy engine brings, in builds that are swift, asked for by the producer.
//
// A box is 64 values of the heads of one key head, of as many nodes as make 64 packed rows, so rows
// arrive in packed order. Rows past the tree's last are whatever lies there, of another request or
// of nobody: rows do not mix, and these are never stored.
#pragma once
#include "storage.cuh"
#include "worklist.cuh"

// Whether the queries of item ``number`` are asked for before anything is read: a request alone
// begins at row 0, and in one piece its tiles are numbered by their heads alone. They are those of
// the first item of each program.
INLINE bool known_ahead(const Params& p, int number) {
  return p.q_nodes > 0 && p.requests == 1 && p.cluster > 0 && number < item_step(p);
}

// The first node of a tile, whole nodes to a tile.
template <class S>
INLINE int node_of(const Params& p, int tile) { return tile * S::CONSUMERS * p.q_nodes; }

// Starts the copies of a tile's rows, by one thread; ``row`` is the row of q of its first node.
template <class S>
INLINE void ask_queries(
    const Params& p, const TensorMap* map, const Storage<S>& shared, int row, int head) {
  barrier_expect(shared.queries_full(), S::Q_BYTES);
#pragma unroll
  for (int group = 0; group < S::CONSUMERS; ++group) {
#pragma unroll
    for (int half = 0; half < S::HALVES; ++half) {
      copy_box(shared.q(group) + half * S::Q_HALF_BYTES, map, shared.queries_full(), 64 * half,
               head * p.group, row + group * p.q_nodes, 0);
    }
  }
  barrier_arrive(shared.queries_full());
}

// The same for the first item before it is known, where it can be told.
template <class S>
INLINE void ask_ahead(const Params& p, const TensorMap* map, const Storage<S>& shared) {
  const int number = first_item(p);
  if (!known_ahead(p, number) || threadIdx.x != 0) return;
  const int tile = divided(number, p.kv_heads_inverse);
  ask_queries<S>(p, map, shared, node_of<S>(p, tile), number - tile * p.kv_heads);
}

// Whether the engine brings queries for item ``number``: for what has tiles, and where it was asked
// before that was known.
INLINE bool are_brought(const Params& p, const Item& item, int number) {
  return p.q_nodes > 0 && (item.begin < item.end || known_ahead(p, number));
}

// Starts the copies for an item that has tiles, when those of the item before were read. All warps
// of the producer wait: in a branch of some, exchanges of lanes that follow would take a slow way.
template <class S>
INLINE void next_queries(
    const Params& p, const TensorMap* map, const Storage<S>& shared, int row, int head, int number,
    uint32_t parity) {
  if (p.q_nodes == 0 || known_ahead(p, number)) return;
  barrier_wait(shared.queries_empty(), parity);
  if (threadIdx.x == 0) ask_queries<S>(p, map, shared, row, head);
  __syncwarp();
}
