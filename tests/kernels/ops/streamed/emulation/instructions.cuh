// The kernel's further instructions, done by the CPU; stands in for the kernel's own file.
#pragma once
#include "wgmma.cuh"

struct uint2 {
  uint32_t x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }

namespace machine {
inline fibers::Meeting consuming[MOST_PROGRAMS];
}

inline void store_float(uint32_t at, float value) { memcpy(machine::bytes(at), &value, 4); }
template <int THREADS>
void consumers_sync() {
  machine::consuming[machine::me()].size = THREADS;
  machine::consuming[machine::me()].join();
}
template <class Element>
float widened(Element, uint32_t bits) { return Element::widen(uint16_t(bits)); }
