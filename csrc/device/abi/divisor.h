// Division by a number that the record knows, as a multiplication: the GPU divides 32 bits in some twenty instructions
// that wait for each other, and every item would begin with a few of them.
#pragma once

namespace ark::abi {

#ifdef __CUDACC__
#define ARK_DIVISOR __host__ __device__
#else
#define ARK_DIVISOR
#endif

/// n / d for 0 <= n < 2^31 and 1 <= d < 2^31 is (2 n * multiplier >> 32) >> shift, with 2^(shift - 1) < d <= 2^shift
/// and multiplier = ceil(2^(31 + shift) / d), which is at least 2^31 and below 2^32. Exact: multiplier * d exceeds
/// 2^(31 + shift) by less than d <= 2^shift, so that the result is too large by n / 2^31 / d < 1 / d at most, and the
/// fraction of n / d is at most 1 - 1 / d.
struct Divisor {
  unsigned int multiplier, shift;

  ARK_DIVISOR constexpr unsigned int divide(unsigned int n) const {
    return static_cast<unsigned int>(static_cast<unsigned long long>(2 * n) * multiplier >> 32) >> shift;
  }
};

ARK_DIVISOR constexpr Divisor divisor_of(unsigned int d) {
  unsigned int shift = 0;
  while (shift < 31 && 1u << shift < d) ++shift;
  const unsigned long long one = 1ull << (31 + shift);
  return {static_cast<unsigned int>((one + d - 1) / d), shift};
}

}  // namespace ark::abi
