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

constexpr int MOST_PROGRAMS = 8;
constexpr uint32_t MEMORY = 232448;  // shared memory of a program; addresses begin at 0 in each
alignas(1024) inline unsigned char memory[MOST_PROGRAMS * MEMORY];

struct uint4 {
  uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
struct float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }

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

struct Sent {
  uint32_t to;
  float values[4];
};

struct Copy {
  int program;  // where it arrives
  uint32_t to, barrier;
  const TensorMap* map;  // null: what a thread sent
  int at[4];
  int sender;
  std::vector<Sent> sent;
};

struct Warp {
  fibers::Meeting meeting;
  uint32_t values[2][32];
};

// What Python writes into the 128 bytes of a map.
struct Map {
  const uint8_t* base;
  int64_t sizes[4], strides[3], box[3];  // 64 values by these
  int64_t rows() const { return box[0] * box[1] * box[2]; }
};

struct Program {
  Barrier barriers[64];
  Warp warps[12];
  fibers::Meeting everybody, named[16], multiplying[3];
  // Threads (+ 1) whose ordinary writes the tensor cores do not see yet, for every 16 bytes.
  uint16_t unseen[MEMORY / 16];
};

inline int cluster = 1;  // programs
inline Program programs[MOST_PROGRAMS];
inline fibers::Meeting all_of_cluster;
inline std::vector<Copy> copies;
inline std::vector<std::pair<uint32_t, const void*>> own_copies[MOST_PROGRAMS * 384];  // null: zeros

inline std::vector<uint32_t> written[MOST_PROGRAMS * 384];  // by each thread, not yet published

inline int me() { return blockIdx.x - fibers::first_program; }
inline Program& here() { return programs[me()]; }
// An ordinary write of this thread, which the tensor cores and copies do not see yet.
inline void hide(uint32_t to) {
  here().unseen[to / 16] = uint16_t(threadIdx.x + 1);
  written[fibers::current].push_back(to / 16);
}
inline unsigned char* bytes(uint32_t address, int program = me()) {
  if (address >= MEMORY) throw Fault("outside of shared memory");
  return memory + program * MEMORY + address;
}

inline Barrier& barrier_at(uint32_t address, int program = me()) {
  if (address % 8 || address + 8 > MEMORY) throw Fault("no barrier there");
  // They lie side by side, and are fewer.
  return programs[program].barriers[address / 8 % 64];
}

inline uint32_t swizzle(uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

// What a thread sent arrives in another program.
inline bool deliver(const Copy& copy) {
  const auto first = fibers::all.begin() + copy.program * fibers::threads;
  const auto done = [](const fibers::Fiber& thread) { return thread.done; };
  // Outside of all threads, where nobody would catch it.
  if (std::all_of(first, first + fibers::threads, done)) fibers::fault = "sent to an ended program";
  for (const Sent& one : copy.sent) memcpy(bytes(one.to, copy.program), one.values, 16);
  Barrier& barrier = barrier_at(copy.barrier, copy.program);
  barrier.bytes -= 16 * int(copy.sent.size());
  barrier.settle();
  return true;
}

// Does one of the outstanding bulk copies, drawn at random.
inline bool copy_one() {
  if (copies.empty()) return false;
  const size_t which = fibers::chance() % copies.size();
  const Copy copy = copies[which];
  copies.erase(copies.begin() + which);
  if (copy.map == nullptr) return deliver(copy);
  Map map;
  memcpy(&map, copy.map->bytes, sizeof(map));
  for (int row = 0; row < map.rows(); ++row) {
    const int64_t within[3] = {
        row % map.box[0], row / map.box[0] % map.box[1], row / map.box[0] / map.box[1]};
    for (int i = 0; i < 64; ++i) {
      const int64_t at[4] = {copy.at[0] + i, copy.at[1] + within[0], copy.at[2] + within[1],
                             copy.at[3] + within[2]};
      bool inside = true;
      const uint8_t* from = map.base + 2 * at[0];
      for (int axis = 0; axis < 4; ++axis) {
        inside = inside && at[axis] >= 0 && at[axis] < map.sizes[axis];
        if (axis) from += at[axis] * map.strides[axis - 1];
      }
      uint8_t* to = bytes(swizzle(copy.to + row * 128 + 2 * i), copy.program);
      if (inside) memcpy(to, from, 2); else memset(to, 0, 2);
    }
  }
  Barrier& barrier = barrier_at(copy.barrier, copy.program);
  barrier.bytes -= int(map.rows()) * 128;
  barrier.settle();
  return true;
}

inline void begin(int threads, int size, int first) {
  fibers::threads = threads;
  fibers::first_program = first;
  cluster = size;
  all_of_cluster = fibers::Meeting{size * threads};
  memset(memory, 0xff, size * MEMORY);  // NaN
  for (int i = 0; i < size; ++i) {
    Program& one = programs[i];
    memset(one.unseen, 0, sizeof(one.unseen));
    for (auto& barrier : one.barriers) barrier = Barrier();
    for (auto& warp : one.warps) warp = Warp();
    for (auto& barrier : one.named) barrier = fibers::Meeting{128};
    for (auto& group : one.multiplying) group = fibers::Meeting{128};
    one.everybody = fibers::Meeting{threads};
    one.named[3] = fibers::Meeting{threads};
  }
  for (auto& copies_of_one : own_copies) copies_of_one.clear();
  for (auto& places : written) places.clear();
  copies.clear();
  fibers::background = copy_one;
}

template <class Value>
Value exchange(Value value, int from) {
  Warp& warp = here().warps[threadIdx.x / 32];
  uint32_t(&values)[32] = warp.values[warp.meeting.round % 2];
  memcpy(&values[threadIdx.x % 32], &value, 4);
  warp.meeting.join();
  Value got;
  memcpy(&got, &values[from], 4);
  return got;
}

}  // namespace machine

inline void __syncthreads() { machine::here().everybody.join(); }
inline void __syncwarp() { machine::here().warps[threadIdx.x / 32].meeting.join(); }
inline void group_sync(int group) { machine::here().named[group + 1].join(); }
template <int THREADS>
void consumers_done() { machine::here().named[3].arrive(); }
template <int THREADS>
void wait_for_consumers() { machine::here().named[3].join(); }

inline void cluster_sync() {
  __syncwarp();
  machine::all_of_cluster.join();
  if (threadIdx.x % 32 == 0) fibers::linger();
}
inline uint32_t peer_address(uint32_t at, int peer) {
  if (peer >= machine::cluster) throw machine::Fault("no such program in the cluster");
  return at | uint32_t(peer) << 24;
}
inline void send_4(uint32_t there, uint32_t barrier, float a, float b, float c, float d) {
  const uint32_t to = there & 0xffffff;
  if (to % 16 || there >> 24 != barrier >> 24) throw machine::Fault("not sent to its barrier");
  auto& copies = machine::copies;
  const auto mine = [&](const machine::Copy& copy) {
    return copy.sender == fibers::current && copy.program == int(there >> 24);
  };
  if (copies.empty() || !mine(copies.back())) {
    copies.push_back({int(there >> 24), 0, barrier & 0xffffff, nullptr, {}, fibers::current, {}});
  }
  copies.back().sent.push_back({to, {a, b, c, d}});
  ++fibers::progress;
}
inline float4 load_shared_4(uint32_t at) {
  float4 value;
  if (at % 16) throw machine::Fault("not aligned");
  memcpy(&value, machine::bytes(at), sizeof(value));
  return value;
}
inline void wait_for_kernel_before() {}
inline void admit_kernel_behind() {}
inline void prefetch_line(const void*) {}
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
  machine::Warp& warp = machine::here().warps[threadIdx.x / 32];
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
inline int32_t load_here(const int32_t* at) { return *at; }
inline void __trap() { throw machine::Fault("trap"); }

inline uint32_t shared_address(const void* at) {
  return uint32_t(static_cast<const unsigned char*>(at) - memory);  // the same in every program
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
  machine::Map sizes;
  memcpy(&sizes, map->bytes, sizeof(sizes));
  const int size = int(sizes.rows()) * 128;
  for (uint32_t at = to / 16; at < (to + size) / 16; ++at) {
    if (machine::here().unseen[at]) throw machine::Fault("copied over what was not published");
  }
  machine::copies.push_back({machine::me(), to, barrier, map, {value, slot, head, page}, -1, {}});
  ++fibers::progress;
}
inline void prefetch_map(const TensorMap*) {}
inline void copy_16(uint32_t to, const void* from, bool real) {
  machine::own_copies[fibers::current].push_back({to, real ? from : nullptr});
}
inline void write_16(uint32_t to, const void* from) {
  machine::hide(to);
  if (from) memcpy(machine::bytes(to), from, 16); else memset(machine::bytes(to), 0, 16);
}
inline void copies_done() {
  for (auto& [to, from] : machine::own_copies[fibers::current]) write_16(to, from);
  machine::own_copies[fibers::current].clear();
}
inline void store_shared(uint32_t to, uint4 value) { write_16(to, &value); }
inline void publish_shared() {
  for (uint32_t place : machine::written[fibers::current]) {
    uint16_t& writer = machine::here().unseen[place];
    if (writer == threadIdx.x + 1) writer = 0;
  }
  machine::written[fibers::current].clear();
}
inline void finish_before(uint32_t, float) {}
template <int COUNT>
void take_registers() {}
template <int COUNT>
void give_registers() {}
inline float exp2_fast(float x) { return exp2f(x); }
inline float inverse_fast(float x) { return 1.0f / x; }
inline float log2_fast(float x) { return log2f(x); }
