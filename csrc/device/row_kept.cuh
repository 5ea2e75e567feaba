// A row that its threads keep in registers from the first pass to the last. What only a later pass reads is asked for
// before the reduction that this pass waits for.
#pragma once
#include "device/row_group.cuh"

namespace ark::device {

template <class P>
struct KeptRow {
  static constexpr int V = P::kVector;

  const ProgramContext& c;
  const RowGroup& group;
  const i32 (&row)[P::kDims];
  i64 row_size;
  typename P::template Inputs<V> kept[P::kChunks] = {};

  ARK_DEVICE void start(const typename P::Uniform& u) { load<0>(u); }

  template <int kPass, class Sink>
  ARK_DEVICE void run(typename P::Uniform& u, unsigned char* buffer, const Sink& sink) {
    auto acc = P::accumulator(Pass<kPass>{});
    acc.start();
    each_vector([&](auto k, int at, const i32(&x)[P::kDims]) __attribute__((always_inline)) {
      P::template element<V>(Pass<kPass>{}, c, x, at, kept[k.value], u, acc, sink.at(at));
    });
    if constexpr (kPass + 1 < P::kPasses) load<kPass + 1>(u);
    group.reduce(acc, buffer);
    P::finish(acc, u);
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(u, buffer, sink);
  }

 private:
  template <int kPass>
  ARK_DEVICE void load(const typename P::Uniform& u) {
    each_vector([&](auto k, int, const i32(&x)[P::kDims]) __attribute__((always_inline)) {
      P::template load_more<V>(Pass<kPass>{}, c, x, u, kept[k.value]);
    });
  }

  /// f(chunk, first element, its coordinates) for the thread's vectors. kFull: every thread has all of them, so that
  /// nothing is conditional and the compiler keeps what passes have in common.
  template <class F>
  ARK_DEVICE void each_vector(F&& f) const {
    unrolled<P::kChunks>([&](auto k) __attribute__((always_inline)) {
      const int at = (k.value * P::kThreads + group.thread()) * V;
      if (!P::kFull && at >= row_size) return;
      i32 x[P::kDims];
      row_coordinates<P>(c, row, at, x);
      f(k, at, x);
    });
  }
};

}  // namespace ark::device
