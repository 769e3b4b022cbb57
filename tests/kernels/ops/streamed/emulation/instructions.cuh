// The kernel's further instructions, done by the CPU; stands in for the kernel's own file.
#pragma once
#include "wgmma.cuh"

inline uint32_t turn_eight(uint32_t both) {
  const int lane = threadIdx.x % 32, half = lane / 4 % 2;
  // This lane's row of the result is a column of the matrix: one of two that a lane of each row has.
  const uint32_t first = machine::exchange(both, lane % 4 * 8 + lane / 8);
  const uint32_t second = machine::exchange(both, lane % 4 * 8 + 4 + lane / 8);
  const auto one = [&](uint32_t two) { return half ? two >> 16 : two & 0xffff; };
  return one(first) | one(second) << 16;
}
template <class Element>
float widened(Element, uint32_t bits) { return Element::widen(uint16_t(bits)); }
