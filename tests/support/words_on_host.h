// For tests that compile device code of words in registers for the host: what the device does in one instruction.
#pragma once
#include <cstdint>

#include "device/abi/abi.h"

inline uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline uint32_t __funnelshift_lc(uint32_t low, uint32_t high, uint32_t shift) {
  const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
  return static_cast<uint32_t>(both << (shift < 32 ? shift : 32) >> 32);
}

namespace ark::device {
inline int64_t multiply_add_wide(int32_t a, int32_t b, int64_t c) { return static_cast<int64_t>(a) * b + c; }
}  // namespace ark::device
