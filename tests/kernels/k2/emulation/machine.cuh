// The instructions of sm_90a that the kernel uses, done by the CPU: the same names as in the
// kernel's own machine.cuh, which this file stands in for.
#pragma once
#include <math.h>

#include "fibers.h"
#include "params.cuh"

#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __shared__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads, programs)
#define INLINE inline

alignas(1024) inline unsigned char memory[232448];

struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

namespace machine {

using fibers::Fault;

struct Barrier {
  int count = 0, pending = 0, bytes = 0;
  uint32_t phase = 0;
  void settle() {
    ++fibers::progress;
    if (pending < 0) throw Fault("more arrivals at a barrier than it counts");
    if (pending == 0 && bytes == 0) {
      pending = count;
      phase ^= 1;
    }
  }
};

struct Copy {
  uint32_t to, barrier;
  const TensorMap* map;
  int at[4];
};

struct Warp {
  fibers::Meeting meeting;
  uint32_t values[2][32];
};

// What Python writes into the 128 bytes of a map.
struct Map {
  const uint8_t* base;
  int64_t sizes[4], strides[3], rows;
};

inline Barrier barriers[64];
inline std::vector<Copy> copies;
inline Warp warps[12];
inline fibers::Meeting everybody, named[16], multiplying[3];
inline std::vector<std::pair<uint32_t, const void*>> own_copies[384];  // null: zeros
// Threads (+ 1) whose ordinary writes the tensor cores do not see yet, for every 16 bytes.
inline uint16_t unseen[sizeof(memory) / 16];

inline Barrier& barrier_at(uint32_t address) {
  if (address % 8 || address + 8 > sizeof(memory)) throw Fault("no barrier there");
  // They lie side by side, and are fewer.
  return barriers[address / 8 % 64];
}

inline uint32_t swizzle(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// Does one of the outstanding bulk copies, drawn at random.
inline bool copy_one() {
  if (copies.empty()) return false;
  const size_t which = fibers::chance() % copies.size();
  const Copy copy = copies[which];
  copies.erase(copies.begin() + which);
  Map map;
  memcpy(&map, copy.map->bytes, sizeof(map));
  for (int row = 0; row < map.rows; ++row) {
    for (int i = 0; i < 64; ++i) {
      const int64_t at[4] = {copy.at[0] + i, copy.at[1] + row, copy.at[2], copy.at[3]};
      bool inside = true;
      const uint8_t* from = map.base + 2 * at[0];
      for (int axis = 0; axis < 4; ++axis) {
        inside = inside && at[axis] >= 0 && at[axis] < map.sizes[axis];
        if (axis) from += at[axis] * map.strides[axis - 1];
      }
      uint8_t* to = memory + swizzle(copy.to + row * 128 + 2 * i);
      if (inside) memcpy(to, from, 2); else memset(to, 0, 2);
    }
  }
  Barrier& barrier = barrier_at(copy.barrier);
  barrier.bytes -= int(map.rows) * 128;
  barrier.settle();
  return true;
}

inline void begin(int threads) {
  memset(memory, 0xff, sizeof(memory));  // NaN
  memset(unseen, 0, sizeof(unseen));
  for (auto& barrier : barriers) barrier = Barrier();
  for (auto& warp : warps) warp = Warp();
  for (auto& barrier : named) barrier = fibers::Meeting{128};
  for (auto& group : multiplying) group = fibers::Meeting{128};
  for (auto& copies_of_one : own_copies) copies_of_one.clear();
  everybody = fibers::Meeting{threads};
  copies.clear();
  fibers::background = copy_one;
}

template <class Value>
Value exchange(Value value, int from) {
  Warp& warp = warps[threadIdx.x / 32];
  uint32_t(&values)[32] = warp.values[warp.meeting.round % 2];
  memcpy(&values[threadIdx.x % 32], &value, 4);
  warp.meeting.join();
  Value got;
  memcpy(&got, &values[from], 4);
  return got;
}

}  // namespace machine

inline void __syncthreads() { machine::everybody.join(); }
inline void __syncwarp() { machine::warps[threadIdx.x / 32].meeting.join(); }
inline void group_sync(int group) { machine::named[group + 1].join(); }
template <class V>
V __shfl_sync(unsigned, V value, int from) { return machine::exchange(value, from); }
template <class V>
V __shfl_xor_sync(unsigned, V value, int bits) {
  return machine::exchange(value, threadIdx.x % 32 ^ bits);
}
template <class V>
V __shfl_up_sync(unsigned, V value, int step) {
  const int lane = threadIdx.x % 32;
  return machine::exchange(value, lane >= step ? lane - step : lane);
}
inline unsigned __ballot_sync(unsigned, bool mine) {
  machine::Warp& warp = machine::warps[threadIdx.x / 32];
  uint32_t(&values)[32] = warp.values[warp.meeting.round % 2];
  values[threadIdx.x % 32] = mine;
  warp.meeting.join();
  unsigned bits = 0;
  for (int lane = 0; lane < 32; ++lane) bits |= values[lane] << lane;
  return bits;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
template <class V>
V __ldg(const V* at) { return *at; }
inline void __trap() { throw machine::Fault("trap"); }

inline uint32_t shared_address(const void* at) {
  return uint32_t(static_cast<const unsigned char*>(at) - memory);
}
inline void barrier_init(uint32_t at, int arrivals) {
  machine::barrier_at(at) = {arrivals, arrivals, 0, 0};
}
inline void barrier_init_done() {}
inline void barrier_arrive(uint32_t at) {
  machine::Barrier& barrier = machine::barrier_at(at);
  --barrier.pending;
  barrier.settle();
}
inline void barrier_expect(uint32_t at, int bytes) { machine::barrier_at(at).bytes += bytes; }
inline void barrier_wait(uint32_t at, uint32_t parity) {
  machine::Barrier& barrier = machine::barrier_at(at);
  if (barrier.count == 0) throw machine::Fault("a barrier that nobody made");
  fibers::wait([&] { return barrier.phase != parity; });
  __syncwarp();
}
inline void copy_box(
    uint32_t to, const TensorMap* map, uint32_t barrier, int value, int slot, int head, int page) {
  if (to % 1024) throw machine::Fault("a box that begins within a swizzle atom");
  machine::copies.push_back({to, barrier, map, {value, slot, head, page}});
  ++fibers::progress;
}
inline void prefetch_map(const TensorMap*) {}
inline void copy_16(uint32_t to, const void* from, bool real) {
  machine::own_copies[threadIdx.x].push_back({to, real ? from : nullptr});
}
inline void write_16(uint32_t to, const void* from) {
  machine::unseen[to / 16] = uint16_t(threadIdx.x + 1);
  if (from) memcpy(memory + to, from, 16); else memset(memory + to, 0, 16);
}
inline void copies_done() {
  for (auto& [to, from] : machine::own_copies[threadIdx.x]) write_16(to, from);
  machine::own_copies[threadIdx.x].clear();
}
inline void store_shared(uint32_t to, uint4 value) { write_16(to, &value); }
inline void publish_shared() {
  for (auto& writer : machine::unseen) writer = writer == threadIdx.x + 1 ? 0 : writer;
}
inline void finish_before(uint32_t, float) {}
template <int COUNT>
void take_registers() {}
template <int COUNT>
void give_registers() {}
inline float exp2_fast(float x) { return exp2f(x); }
inline float log2_fast(float x) { return log2f(x); }
