// A row that is read again in every pass: longer than what registers hold, or of a length or place in memory that
// vectors do not divide. Vectors start where the operands are aligned (all of them are off by as much, else P::kVector
// is 1); the elements before and after go one by one.
#pragma once
#include "device/row_group.cuh"

namespace ark::device {

template <class P>
struct StreamedRow {
  static constexpr int V = P::kVector;

  const ProgramContext& c;
  const RowGroup& group;
  const i32 (&row)[P::kDims];
  i64 row_size;
  i64 begin = 0, end = 0;  // of the vectors

  ARK_DEVICE void start(const typename P::Uniform&) {
    begin = min(static_cast<i64>(P::head(c, row)), row_size);
    end = begin + (row_size - begin) / V * V;
  }

  template <int kPass, class Sink>
  ARK_DEVICE void run(typename P::Uniform& u, unsigned char* buffer, const Sink& sink) {
    auto acc = P::accumulator(Pass<kPass>{});
    acc.start();
    constexpr int kUnroll = P::kInFlight[kPass];
    constexpr i64 kStep = P::kThreads * V;
#pragma unroll 1
    for (i64 e = begin + group.thread() * V; e < end; e += kUnroll * kStep)
      elements<kPass, V, kUnroll>(e, end, u, acc, sink);
    if constexpr (V > 1 && P::kEdges) {
      const i64 t = group.thread();
      elements<kPass, 1, 1>(t < begin ? t : end + t - begin, row_size, u, acc, sink);
    }
    group.reduce(acc, buffer);
    P::finish(acc, u);
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(u, buffer, sink);
  }

 private:
  /// Vectors at e, e + step, ... below `limit`: all loads are issued before the first is used.
  template <int kPass, int kLength, int kCount, class A, class Sink>
  ARK_DEVICE void elements(i64 e, i64 limit, const typename P::Uniform& u, A& acc, const Sink& sink) const {
    constexpr i64 kStep = P::kThreads * kLength;
    i32 x[kCount][P::kDims] = {};
    typename P::template Inputs<kLength> in[kCount];
    unrolled<kCount>([&](auto k) __attribute__((always_inline)) {
      if (e + k.value * kStep >= limit) return;
      row_coordinates<P>(c, row, e + k.value * kStep, x[k.value]);
      P::template load<kLength>(Pass<kPass>{}, c, x[k.value], u, in[k.value]);
    });
    unrolled<kCount>([&](auto k) __attribute__((always_inline)) {
      const i64 at = e + k.value * kStep;
      if (at < limit) P::template element<kLength>(Pass<kPass>{}, c, x[k.value], at, in[k.value], u, acc, sink.at(at));
    });
  }
};

}  // namespace ark::device
