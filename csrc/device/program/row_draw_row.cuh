// kRowDraw: a row, or a part of one, as its tiles read it; and keys, whole numbers in the order of floats.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

/// Of a number, above 0: greater where it is; alike for both zeros; the most for NaN.
ARK_DEVICE u32 draw_key(float x) {
  const u32 bits = __float_as_uint(x + 0.0f);
  const u32 key = (bits >> 31) != 0 ? ~bits : bits | 1u << 31;
  return x == x ? key : ~0u;
}
ARK_DEVICE float draw_number(u32 key) { return __uint_as_float((key >> 31) != 0 ? key ^ 1u << 31 : ~key); }
/// Of a key: neither an infinity nor NaN.
ARK_DEVICE bool draw_finite(u32 key) { return key > draw_key(-op::infinity()) && key < draw_key(op::infinity()); }

struct DrawRow {
  using X = abi::RowDrawOperand;
  static constexpr int kStep = kConsumerThreads * 4;  // elements that all threads take at once
  static constexpr int kAhead = 4;                    // vectors of a thread under way

  /// Neighbours, the noise where it is asked for.
  struct Four {
    Vec<float, 4> value, noise;
  };
  using Ahead = Four[kAhead];

  const Consumer& consumer;
  const Task& task;
  const abi::RowDrawParams& p;
  int row, part;
  int begin, end;

  ARK_DEVICE DrawRow(const Consumer& c, const Task& of, int tile)
      : consumer(c), task(of), p(of.record->params.row_draw) {
    row = tile / of.record->grid[abi::GridAxis::kMiddle];
    part = tile - row * of.record->grid[abi::GridAxis::kMiddle];
    const bool last = p.stage == abi::kDrawLast;
    begin = last ? 0 : part * p.part;
    end = last ? p.size : min(begin + p.part, p.size);
  }

  template <class T>
  ARK_DEVICE T* address(int operand) const {
    const abi::Operand& x = task.operand(operand);
    return task.address<T>(operand) + row * x.stride[0];
  }
  template <class T>
  ARK_DEVICE T* address_of_part(int operand) const {
    return address<T>(operand) + part * task.operand(operand).stride[1];
  }
  ARK_DEVICE float share() const { return load_element(address<const float>(X::kShare)); }
  /// Masses of a part. Few candidates are enough where each is kept with a probability of 0.6 or more.
  static ARK_DEVICE int words(float share) { return share > 0.4f ? abi::kDrawWords : abi::kDrawFewWords; }

  /// The thread's elements from `first` on, as many as are under way at once.
  template <bool kNoise>
  ARK_DEVICE void load(int first, Ahead& x) const {
    const float *values = address<const float>(X::kValues), *noise = nullptr;
    if constexpr (kNoise) noise = address<const float>(X::kNoise);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (first + k * kStep >= end) return;  // most parts have a vector for each thread: the rest is not fetched
      const int at = first + k * kStep + consumer.thread() * 4;
      load_four(values, X::kValues, at, x[k].value);
      if constexpr (kNoise) load_four(noise, X::kNoise, at, x[k].noise);
    }
  }
  /// f(neighbours, where they begin, how many of them are there) of all that the tile has; `x` are the first, if they
  /// are `loaded`.
  template <bool kNoise, class F>
  ARK_DEVICE void each(Ahead& x, bool loaded, const F& f) const {
#pragma unroll 1
    for (int first = begin; first < end; first += kAhead * kStep) {
      if (!loaded || first != begin) load<kNoise>(first, x);
#pragma unroll 1
      for (int at = first + consumer.thread() * 4, k = 0; k < kAhead && at < end; at += kStep, ++k) {
        f(x[0], at, min(end - at, 4));
#pragma unroll
        for (int i = 0; i + 1 < kAhead; ++i) x[i] = x[i + 1];
      }
    }
  }
  /// f(value, noise, place), one after the other: code that runs once is short.
  template <bool kNoise, class F>
  ARK_DEVICE void each_element(Ahead& x, bool loaded, const F& f) const {
    each<kNoise>(x, loaded, [&](Four four, int at, int left) {
#pragma unroll 1
      for (int i = 0; i < left; ++i) {
        f(four.value.v[0], four.noise.v[0], at + i);
#pragma unroll
        for (int j = 0; j < 3; ++j) four.value.v[j] = four.value.v[j + 1], four.noise.v[j] = four.noise.v[j + 1];
      }
    });
  }

 private:
  ARK_DEVICE void load_four(const float* from, int operand, int at, Vec<float, 4>& x) const {
    if (p.vector == 4 && at + 4 <= end) return load_vector(from + at, x);
    const i64 stride = task.operand(operand).stride[1];
    const float* one = from + at * stride;
#pragma unroll
    for (int i = 0; i < 4; ++i, one += stride)
      if (at + i < end) x.v[i] = load_element(one);
  }
};

}  // namespace ark::device
