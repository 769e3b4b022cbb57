// The instructions of sm_90a that C++ has no words for: barriers, copies, registers.
#pragma once
#include <stdint.h>

#include "params.cuh"

#define INLINE __device__ __forceinline__

INLINE uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

INLINE void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers known to the copy engine and to the other programs of the cluster.
INLINE void barrier_init_done() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

INLINE void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Bytes that copies will bring before the phase can end; is no arrival itself.
INLINE void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

INLINE bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}

// A wait of seconds can only be a fault: an error then, instead of a device that hangs.
constexpr long long LONGEST_WAIT = 5'000'000'000;  // clock cycles

INLINE void barrier_wait(uint32_t barrier, uint32_t parity) {
  if (!barrier_passed(barrier, parity)) {
    const long long begun = clock64();
    while (!barrier_passed(barrier, parity)) {
      if (clock64() - begun > LONGEST_WAIT) __trap();
    }
  }
  // What follows is done by whole warps, whichever lane saw the barrier pass first.
  __syncwarp();
}

// All 128 threads of consumer warpgroup ``group``; barrier 0 belongs to __syncthreads.
INLINE void group_sync(int group) {
  asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
}

// Of all THREADS of a program, the producer waits for the consumers to be through with an item.
template <int THREADS>
INLINE void consumers_done() {
  asm volatile("bar.arrive 3, %0;" ::"n"(THREADS) : "memory");
}
template <int THREADS>
INLINE void wait_for_consumers() {
  asm volatile("bar.sync 3, %0;" ::"n"(THREADS) : "memory");
}

// All threads of all programs of a cluster come before one goes on. It publishes nothing: a release
// would be a fence of the whole device in every warp. What comes before it are reads that have ended,
// and what is sent behind it announces itself.
INLINE void cluster_sync() {
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What program ``peer`` of the cluster has at the address that is ``at`` here.
INLINE uint32_t peer_address(uint32_t at, int peer) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(peer));
  return there;
}

// Sends 16 bytes to another program; they count at its barrier when they are there.
INLINE void send_4(uint32_t there, uint32_t barrier, float a, float b, float c, float d) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32"
      " [%0], {%2, %3, %4, %5}, [%1];" ::"r"(there),
      "r"(barrier), "f"(a), "f"(b), "f"(c), "f"(d)
      : "memory");
}

INLINE float4 load_shared_4(uint32_t at) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

// Where the launch allows it, this kernel starts while the one before it on the stream still runs:
// nothing that was written by another kernel may be touched before the wait. The other way round,
// the next kernel may be placed as soon as all programs of this one run.
INLINE void wait_for_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
INLINE void admit_kernel_behind() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// A load that stays behind the wait for the kernel before: one through ``ld.global.nc``, as __ldg is,
// was seen to be moved ahead of it, since nobody is supposed to write what it reads.
INLINE int32_t load_here(const int32_t* at) {
  int32_t value;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}

// Brings a line closer, for a load that follows.
INLINE void prefetch_line(const void* at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }

// Ordinary writes to shared memory of this thread become visible to tensor cores and copies.
INLINE void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// One box of 64 values x rows of a pool; what lies outside of a dimension is filled with zeros.
INLINE void copy_box(
    uint32_t to, const TensorMap* map, uint32_t barrier, int value, int slot, int head, int page) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(value), "r"(slot), "r"(head), "r"(page)
      : "memory");
}

INLINE void prefetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// 16 bytes, or 16 zeros without reading.
INLINE void copy_16(uint32_t to, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(real ? 16 : 0)
               : "memory");
}

INLINE void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

INLINE void store_shared(uint32_t to, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

// Keeps the compiler from moving what a sum of weights was made of behind the wait that follows: a
// store that never happens, as the sum is never negative.
INLINE void finish_before(uint32_t unused, float sum) {
  asm volatile(
      "{ .reg .pred p; setp.lt.f32 p, %1, 0f00000000; @p st.shared.f32 [%0], %1; }" ::"r"(unused),
      "f"(sum)
      : "memory");
}

template <int COUNT>
INLINE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
INLINE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

INLINE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

INLINE float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

INLINE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
