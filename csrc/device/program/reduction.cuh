// Reductions in progress, and their values from lane to lane. All merges are in a fixed order.
#pragma once
#include "device/program/extreme_place.cuh"
#include "device/program/math.cuh"
#include "device/ptx/ptx.cuh"

namespace ark::device {

/// Sums v[i] over the warp; lane l gets the sum of value l / (32 / kCount). A fixed tree. Destroys v.
template <int kCount>
ARK_DEVICE float transpose_sum(float (&v)[kCount], int lane) {
  int mask = 16;
#pragma unroll
  for (int count = kCount; count > 1; count /= 2, mask /= 2) {
    const bool upper = lane & mask;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i < count / 2) {
        const float keep = upper ? v[i + count / 2] : v[i], give = upper ? v[i] : v[i + count / 2];
        v[i] = keep + __shfl_xor_sync(~0u, give, mask);
      }
    }
  }
#pragma unroll 1
  for (; mask > 0; mask /= 2) v[0] += __shfl_xor_sync(~0u, v[0], mask);
  return v[0];
}

/// Any trivially copyable struct from another lane.
template <class T>
ARK_DEVICE T shuffle_xor(const T& value, int mask) {
  static_assert(sizeof(T) % 4 == 0);
  T out;
  u32 words[sizeof(T) / 4];
  __builtin_memcpy(words, &value, sizeof(T));
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); ++i) words[i] = __shfl_xor_sync(~0u, words[i], mask);
  __builtin_memcpy(&out, words, sizeof(T));
  return out;
}

/// One reduction in progress: start(), add(element, index), merge(other accumulator). All merges are in a fixed order.
template <class T>
struct SumAccumulator {
  T value;
  ARK_DEVICE void start() { value = T(0); }
  ARK_DEVICE void add(T x, i64) { value = op::add(value, x); }
  ARK_DEVICE void merge(const SumAccumulator& o) { value = op::add(value, o.value); }
  ARK_DEVICE T result() const { return value; }
};
template <class T>
struct ProdAccumulator {
  T value;
  ARK_DEVICE void start() { value = T(1); }
  ARK_DEVICE void add(T x, i64) { value = op::mul(value, x); }
  ARK_DEVICE void merge(const ProdAccumulator& o) { value = op::mul(value, o.value); }
  ARK_DEVICE T result() const { return value; }
};
/// NaN if one of them is. Which zero wins is open, as is the order of a reduction.
template <class T>
ARK_DEVICE T greater(T a, T b) {
  return op::maximum(a, b);
}
template <>
ARK_DEVICE float greater<float>(float a, float b) {
  return maximum_or_nan(a, b);
}
template <class T>
ARK_DEVICE T smaller(T a, T b) {
  return op::minimum(a, b);
}
template <>
ARK_DEVICE float smaller<float>(float a, float b) {
  return minimum_or_nan(a, b);
}
template <class T>
struct MaxAccumulator {
  T value;
  ARK_DEVICE void start() { value = lowest<T>(); }
  ARK_DEVICE void add(T x, i64) { value = greater(value, x); }
  ARK_DEVICE void merge(const MaxAccumulator& o) { value = greater(value, o.value); }
  ARK_DEVICE T result() const { return value; }
};
template <class T>
struct MinAccumulator {
  T value;
  ARK_DEVICE void start() { value = highest<T>(); }
  ARK_DEVICE void add(T x, i64) { value = smaller(value, x); }
  ARK_DEVICE void merge(const MinAccumulator& o) { value = smaller(value, o.value); }
  ARK_DEVICE T result() const { return value; }
};
struct AnyAccumulator {
  u32 value;
  ARK_DEVICE void start() { value = 0; }
  ARK_DEVICE void add(bool x, i64) { value |= x; }
  ARK_DEVICE void merge(const AnyAccumulator& o) { value |= o.value; }
  ARK_DEVICE bool result() const { return value != 0; }
};
struct AllAccumulator {
  u32 value;
  ARK_DEVICE void start() { value = 1; }
  ARK_DEVICE void add(bool x, i64) { value &= x; }
  ARK_DEVICE void merge(const AllAccumulator& o) { value &= o.value; }
  ARK_DEVICE bool result() const { return value != 0; }
};
}  // namespace ark::device
