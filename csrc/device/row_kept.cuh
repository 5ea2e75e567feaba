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
    each_vector([&](auto k, const ProgramContext& at_k, int at, const i32(&x)[P::kDims])
                    __attribute__((always_inline)) {
                      P::template element<V>(Pass<kPass>{}, at_k, x, at, kept[k.value], u, acc, sink.at(at));
                    });
    if constexpr (kPass + 1 < P::kPasses) load<kPass + 1>(u);
    group.reduce(acc, buffer);
    P::finish(acc, u);
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(u, buffer, sink);
  }

 private:
  template <int kPass>
  ARK_DEVICE void load(const typename P::Uniform& u) {
    each_vector([&](auto k, const ProgramContext& at_k, int, const i32(&x)[P::kDims]) __attribute__((always_inline)) {
      P::template load_more<V>(Pass<kPass>{}, at_k, x, u, kept[k.value]);
    });
  }

  /// f(chunk, context, first element, coordinates) for the thread's vectors. kFull: every thread has all of them, so
  /// that nothing is conditional and the compiler keeps what passes have in common.
  template <class F>
  ARK_DEVICE void each_vector(F&& f) const {
    const int first = group.thread() * V;
    unrolled<P::kChunks>([&](auto k) __attribute__((always_inline)) {
      constexpr int kFurther = k.value * P::kThreads * V;
      if (!P::kFull && first + kFurther >= row_size) return;
      at_element<P, kFurther>(c, row, first,
                              [&](const ProgramContext& place, const i32(&x)[P::kDims])
                                  __attribute__((always_inline)) { f(k, place, first + kFurther, x); });
    });
  }
};

}  // namespace ark::device
