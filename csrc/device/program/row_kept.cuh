// A row that its threads keep in registers from the first pass to the last. What only a later pass reads is asked for
// before the reduction that this pass waits for; where registers suffice (kAhead), what only the next row reads before
// the first reduction.
#pragma once
#include "device/program/row_group.cuh"

namespace ark::device {

template <class P>
struct KeptRow {
  static constexpr int V = P::kVector;

  const ProgramContext& c;
  const RowGroup& group;
  i64 row_size;
  i32 row[P::kDims] = {};
  typename P::template Inputs<V> ahead[P::kChunks] = {}, kept[P::kChunks] = {};

  /// What the first pass over this row needs and no other row does, asked for while the row before is worked on.
  ARK_DEVICE void load_ahead(const i32 (&of_row)[P::kDims]) {
    if constexpr (P::kAhead)
      each_vector(of_row, [&](auto k, const ProgramContext& place, int, const i32(&x)[P::kDims])
                              __attribute__((always_inline)) { P::template load_ahead<V>(place, x, ahead[k.value]); });
  }
  ARK_DEVICE void start(const typename P::Uniform& u) {
    unrolled<P::kChunks>([&](auto k) __attribute__((always_inline)) { kept[k.value] = ahead[k.value]; });
    load<0>(u);
  }

  /// `first_done` is called when the first pass has used what was loaded ahead.
  template <int kPass, class Sink, class FirstDone>
  ARK_DEVICE void run(typename P::Uniform& u, unsigned char* buffer, const Sink& sink, const FirstDone& first_done) {
    auto acc = P::accumulator(Pass<kPass>{});
    acc.start();
    each_vector(
        row, [&](auto k, const ProgramContext& at_k, int at, const i32(&x)[P::kDims]) __attribute__((always_inline)) {
          P::template element<V>(Pass<kPass>{}, at_k, x, at, kept[k.value], u, acc, sink.at(at));
        });
    if constexpr (kPass == 0) first_done();
    if constexpr (kPass + 1 < P::kPasses) load<kPass + 1>(u);
    group.reduce(acc, buffer);
    P::finish(acc, u);
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(u, buffer, sink, first_done);
  }

 private:
  template <int kPass>
  ARK_DEVICE void load(const typename P::Uniform& u) {
    each_vector(row, [&](auto k, const ProgramContext& at_k, int, const i32(&x)[P::kDims]) __attribute__((
                         always_inline)) { P::template load_more<V>(Pass<kPass>{}, at_k, x, u, kept[k.value]); });
  }

  /// f(chunk, context, first element, coordinates) for the thread's vectors. kFull: every thread has all of them, so
  /// that nothing is conditional and the compiler keeps what passes have in common.
  template <class F>
  ARK_DEVICE void each_vector(const i32 (&of_row)[P::kDims], F&& f) const {
    const int first = group.thread() * V;
    unrolled<P::kChunks>([&](auto k) __attribute__((always_inline)) {
      constexpr int kFurther = k.value * P::kThreads * V;
      if (!P::kFull && first + kFurther >= row_size) return;
      at_element<P, kFurther>(c, of_row, first,
                              [&](const ProgramContext& place, const i32(&x)[P::kDims])
                                  __attribute__((always_inline)) { f(k, place, first + kFurther, x); });
    });
  }
};

}  // namespace ark::device
