// The place of an extreme, of what a thread has met so far. Behind device/program/math.cuh (kIsFloat, infinity).
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

template <class T>
ARK_DEVICE T lowest() {
  if constexpr (op::kIsFloat<T>) return static_cast<T>(-op::infinity());
  return static_cast<T>(0x8000000000000000ull);
}
template <class T>
ARK_DEVICE T highest() {
  if constexpr (op::kIsFloat<T>) return static_cast<T>(op::infinity());
  return static_cast<T>(0x7fffffffffffffffull);
}
/// First index of the extreme; NaN wins. Where nothing but the least extreme was met, add_of_row() keeps no index: the
/// result is then that of the row's first element, 0.
template <class T, bool kMax>
struct ArgAccumulator {
  static constexpr i64 kNone = 0x7fffffffffffffffll;
  i64 index;
  T value;
  ARK_DEVICE void start() {
    index = kNone;
    value = kMax ? lowest<T>() : highest<T>();
  }
  ARK_DEVICE void add(T x, i64 i) { merge(ArgAccumulator{i, x}); }
  /// kLast: behind all that was added before, so that values alone decide.
  template <bool kLast>
  ARK_DEVICE void add_of_row(T x, i64 i) {
    if constexpr (kLast) {
      const bool better = value == value && beyond(x, value);
      index = better ? i : index;
      value = better ? x : value;
    } else if (beyond(x, kMax ? lowest<T>() : highest<T>())) {
      add(x, i);
    }
  }
  /// Or NaN.
  static ARK_DEVICE bool beyond(T x, T y) { return kMax ? !(x <= y) : !(x >= y); }
  ARK_DEVICE void merge(const ArgAccumulator& o) {
    const bool here_nan = value != value, there_nan = o.value != o.value;
    const bool better = there_nan ? !here_nan : !here_nan && (kMax ? o.value > value : o.value < value);
    const bool equal = there_nan ? here_nan : o.value == value;
    if (better || (equal && o.index < index)) *this = o;
  }
  ARK_DEVICE i64 result() const { return index == kNone ? 0 : index; }
};

}  // namespace ark::device
