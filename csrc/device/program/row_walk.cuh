// A prologue's walk over its row (the activation of a few-row product): as many threads as first hold the row in
// registers (kCachedChunks vectors a thread); longer rows are read again in every pass.
#pragma once
#include "device/program/flag_words.cuh"
#include "device/program/row_group.cuh"

namespace ark::device {

/// One walk over the elements of a row, recursively pass by pass: `kept` vectors stay in registers.
template <class P, int V, bool kCached, class Group = RowGroup>
struct RowWalk {
  static constexpr int kChunks = kCached ? P::kCachedChunks : 1;
  static constexpr int kRowDims = P::kReduceDims > 0 ? P::kReduceDims : 1;  // a prologue without a reduction names none
  using Inputs = typename P::template Inputs<V>;

  const ProgramContext& c;
  const Group& group;
  i64 row_size;
  Inputs kept[kChunks];

  ARK_DEVICE void coordinates(i64 r, const i32 (&row)[P::kDims], i32 (&x)[P::kDims]) const {
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) x[d] = row[d];
    unflatten<P::kDims - kRowDims, P::kDims>(*c.task.record, r, x);
  }
  ARK_DEVICE int element_of(int chunk) const {
    return (chunk * group.size + group.thread()) * V;
  }  // cached rows are short

  ARK_DEVICE void load(const i32 (&row)[P::kDims]) {
    if constexpr (kCached) {
      unrolled<kChunks>([&](auto k) __attribute__((always_inline)) {
        if (k.value * group.size * V < row_size && element_of(k.value) < row_size) {
          i32 x[P::kDims] = {};
          coordinates(element_of(k.value), row, x);
          P::template load<V>(c, x, kept[k.value]);
        }
      });
    }
  }

  /// Programs with flagged operands: until all words of the row's vectors are there.
  ARK_DEVICE void wait_until_ready(const i32 (&row)[P::kDims]) {
    device::wait_until_ready(c, [&] {
      bool all = true;
      unrolled<kChunks>([&](auto k) __attribute__((always_inline)) {
        const int at = element_of(k.value);
        if (k.value * group.size * V < row_size && at < row_size) {
          i32 x[P::kDims] = {};
          coordinates(at, row, x);
          all = P::template ready<V>(c, x, kept[k.value]) && all;
        }
      });
      return all;
    });
  }

  template <int kPass, class Sink>
  ARK_DEVICE void run(const i32 (&row)[P::kDims], typename P::Uniform& u, unsigned char* buffer, const Sink& sink) {
    auto acc = P::accumulator(Pass<kPass>{});
    acc.start();
    if constexpr (kCached) {
      unrolled<kChunks>([&](auto k) __attribute__((always_inline)) {
        const int at = element_of(k.value);
        if (k.value * group.size * V < row_size && at < row_size) {
          i32 x[P::kDims] = {};
          coordinates(at, row, x);
          P::template element<V>(Pass<kPass>{}, c, x, at, kept[k.value], u, acc, sink.at(at));
        }
      });
    } else {
      const i64 step = static_cast<i64>(group.size) * V;
      // As many elements in flight whatever the vector: rows of odd lengths went through memory one wait per element.
      constexpr int kUnroll = V == 1 ? (P::kUnroll * P::kVector < 8 ? P::kUnroll * P::kVector : 8) : P::kUnroll;
#pragma unroll 1
      for (i64 e = group.thread() * V; e < row_size; e += kUnroll * step) {
        i32 x[kUnroll][P::kDims] = {};
        Inputs in[kUnroll];
        unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
          if (e + k.value * step < row_size) {
            coordinates(e + k.value * step, row, x[k.value]);
            P::template load<V>(c, x[k.value], in[k.value]);
            if constexpr (P::kFlagged)
              device::wait_until_ready(c, [&] { return P::template ready<V>(c, x[k.value], in[k.value]); });
          }
        });
        unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
          const i64 at = e + k.value * step;
          if (at < row_size) P::template element<V>(Pass<kPass>{}, c, x[k.value], at, in[k.value], u, acc, sink.at(at));
        });
      }
    }
    group.reduce(acc, buffer);
    P::finish(acc, u);
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(row, u, buffer, sink);
  }
};

}  // namespace ark::device
