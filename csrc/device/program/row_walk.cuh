// A prologue's walk over its row (the activation of a few-row product), or over the elements [first, end) of it: as
// many threads as first hold them in registers (kKept vectors a thread); longer rows are read again in every pass.
#pragma once
#include "device/program/flag_words.cuh"
#include "device/program/row_group.cuh"

namespace ark::device {

/// One walk over the elements of a row, recursively pass by pass: `kept` vectors stay in registers (0: none do).
template <class P, int V, int kKept, class Group = RowGroup>
struct RowWalk {
  static constexpr bool kCached = kKept > 0;
  static constexpr int kChunks = kCached ? kKept : 1;
  static constexpr int kRowDims = P::kReduceDims > 0 ? P::kReduceDims : 1;  // a prologue without a reduction names none
  using Inputs = typename P::template Inputs<V>;

  const ProgramContext& c;
  const Group& group;
  int first, end;
  Inputs kept[kChunks];

  ARK_DEVICE void coordinates(i64 r, const i32 (&row)[P::kDims], i32 (&x)[P::kDims]) const {
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) x[d] = row[d];
    unflatten<P::kDims - kRowDims, P::kDims>(*c.task.record, r, x);
  }
  ARK_DEVICE int element_of(int chunk) const { return first + (chunk * group.size + group.thread()) * V; }
  ARK_DEVICE bool has(int chunk) const { return first + chunk * group.size * V < end && element_of(chunk) < end; }

  ARK_DEVICE void load(const i32 (&row)[P::kDims]) {
    if constexpr (kCached) {
      unrolled<kChunks>([&](auto k) __attribute__((always_inline)) {
        if (has(k.value)) {
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
        if (has(k.value)) {
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
        if (has(k.value)) {
          i32 x[P::kDims] = {};
          coordinates(at, row, x);
          P::template element<V>(Pass<kPass>{}, c, x, at, kept[k.value], u, acc, sink.at(at));
        }
      });
    } else {
      const int step = group.size * V;
      // As many elements in flight whatever the vector: rows of odd lengths went through memory one wait per element.
      constexpr int kUnroll = V == 1 ? (P::kUnroll * P::kVector < 8 ? P::kUnroll * P::kVector : 8) : P::kUnroll;
#pragma unroll 1
      for (int e = element_of(0); e < end; e += kUnroll * step) {
        i32 x[kUnroll][P::kDims] = {};
        Inputs in[kUnroll];
        unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
          if (e + k.value * step < end) {
            coordinates(e + k.value * step, row, x[k.value]);
            P::template load<V>(c, x[k.value], in[k.value]);
          }
        });
        if constexpr (P::kFlagged)  // all have been asked for: one trip to the L2, not one each
          unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
            if (e + k.value * step < end)
              device::wait_until_ready(c, [&] { return P::template ready<V>(c, x[k.value], in[k.value]); });
          });
        unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
          const int at = e + k.value * step;
          if (at < end) P::template element<V>(Pass<kPass>{}, c, x[k.value], at, in[k.value], u, acc, sink.at(at));
        });
      }
    }
    group.reduce(acc, buffer);
    P::finish(acc, u);
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(row, u, buffer, sink);
  }
};

}  // namespace ark::device
