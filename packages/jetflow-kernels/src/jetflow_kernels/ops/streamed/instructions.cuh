// Instructions that products need beside those of attention, whose machine.cuh and wgmma.cuh they
// share.
#pragma once
#include "wgmma.cuh"

// A matrix of 8 x 8 numbers of 16 bits: a lane has two of row lane / 4, and then two of that column.
INLINE uint32_t turn_eight(uint32_t both) {
  uint32_t turned;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(both));
  return turned;
}

INLINE float widened(Bfloat, uint32_t bits) { return __uint_as_float(bits << 16); }
INLINE float widened(Half, uint32_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(uint16_t(bits)));
  return value;
}

// d += a b', a [64, 16] and b [16, 16] or [32, 16] in shared memory; d = a b' where ``add`` is 0.
#define MULTIPLY_16(TYPE, NAME)                                                                  \
  INLINE void mma_shared(TYPE, float (&d)[8], uint64_t a, uint64_t b, int add) {                 \
    asm volatile(                                                                                \
        "{ .reg .pred p; setp.ne.b32 p, %10, 0;"                                                 \
        " wgmma.mma_async.sync.aligned.m64n16k16.f32." NAME "." NAME                             \
        " {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0; }"                            \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),    \
          "+f"(d[7])                                                                             \
        : "l"(a), "l"(b), "r"(add));                                                             \
  }
#define MULTIPLY_32(TYPE, NAME)                                                                  \
  INLINE void mma_shared(TYPE, float (&d)[16], uint64_t a, uint64_t b, int add) {                \
    asm volatile(                                                                                \
        "{ .reg .pred p; setp.ne.b32 p, %18, 0;"                                                 \
        " wgmma.mma_async.sync.aligned.m64n32k16.f32." NAME "." NAME                             \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"               \
        " %16, %17, p, 1, 1, 0, 0; }"                                                            \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),    \
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]),             \
          "+f"(d[13]), "+f"(d[14]), "+f"(d[15])                                                  \
        : "l"(a), "l"(b), "r"(add));                                                             \
  }
MULTIPLY_16(Half, "f16")
MULTIPLY_32(Half, "f16")
MULTIPLY_16(Bfloat, "bf16")
MULTIPLY_32(Bfloat, "bf16")
#undef MULTIPLY_16
#undef MULTIPLY_32
