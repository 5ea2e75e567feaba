// Rows that their threads keep in registers from the first pass to the last, P::kRows of them at once, so that short
// rows have as much in flight as long ones. What only a later pass reads is asked for before the reduction that this
// pass waits for; where registers suffice (kAhead), what only the next rows read before the first reduction.
#pragma once
#include "device/program/row_context.cuh"
#include "device/program/row_places.cuh"

namespace ark::device {

template <class P>
struct KeptRows {
  static constexpr int V = P::kVector, kRows = P::kRows;
  using Uniforms = typename P::Uniform[kRows];
  using Inputs = typename P::template Inputs<V>[kRows][P::kChunks];

  const ProgramContext& c;
  const RowGroup& group;
  i64 row_size;
  RowPlaces<P> places = {};
  Inputs ahead = {}, kept = {};

  /// What the first pass over these rows needs and no others do, asked for while the rows before are worked on.
  ARK_DEVICE void load_ahead(const RowPlaces<P>& of) {
    if constexpr (P::kAhead)
      each_vector(of,
                  [&](auto r, auto k, const RowContext<P>& place, int, const i32(&x)[P::kDims])
                      __attribute__((always_inline)) { P::template load_ahead<V>(place, x, ahead[r.value][k.value]); });
  }
  ARK_DEVICE void start(const Uniforms& u) {
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      unrolled<P::kChunks>([&](auto k)
                               __attribute__((always_inline)) { kept[r.value][k.value] = ahead[r.value][k.value]; });
    });
    load<0>(u);
  }

  /// `first_done` is called when the first pass has used what was loaded ahead.
  template <int kPass, class Sink, class FirstDone>
  ARK_DEVICE void run(Uniforms& u, unsigned char* buffer, const Sink& sink, const FirstDone& first_done) {
    RowAccumulators<decltype(P::accumulator(Pass<kPass>{})), kRows> acc;
    acc.start();
    const auto use = [&](auto r, auto k, const RowContext<P>& place, int at, const i32(&x)[P::kDims])
                         __attribute__((always_inline)) {
                           P::template element<V>(Pass<kPass>{}, place, x, at, kept[r.value][k.value], u[r.value],
                                                  acc.row[r.value], sink.at(at));
                         };
    if constexpr (P::kInTurn)
      each_in_turn(use);
    else
      each_vector(places, use);
    if constexpr (kPass == 0) first_done();
    if constexpr (kPass + 1 < P::kPasses) load<kPass + 1>(u);
    group.reduce(acc, buffer);
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) { P::finish(acc.row[r.value], u[r.value]); });
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(u, buffer, sink, first_done);
  }

 private:
  template <int kPass>
  ARK_DEVICE void load(const Uniforms& u) {
    each_vector(places, [&](auto r, auto k, const RowContext<P>& place, int, const i32(&x)[P::kDims])
                            __attribute__((always_inline)) {
                              P::template load_more<V>(Pass<kPass>{}, place, x, u[r.value], kept[r.value][k.value]);
                            });
  }

  /// f(row, chunk, context, first element, coordinates) for the thread's vectors. kFull: every thread has all of them,
  /// so that nothing is conditional and the compiler keeps what passes have in common. kMasked: vectors lie where
  /// memory is aligned, those beyond the row are its last once more, and the context says which elements exist.
  template <class F>
  ARK_DEVICE void each_vector(const RowPlaces<P>& of, F&& f) const {
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      RowContext<P> of_row(c);
      of_row.writes = of.exists(r.value);
      unrolled<P::kChunks>([&](auto k) __attribute__((always_inline)) {
        constexpr int kFurther = k.value * P::kThreads * V;
        const auto use = [&](const RowContext<P>& place, int at, const i32(&x)[P::kDims])
                             __attribute__((always_inline)) { f(r, k, place, at, x); };
        if constexpr (P::kMasked) {
          masked_vector(of_row, of, r.value, k.value, use);
        } else {
          const int first = group.thread() * V;
          if (!P::kFull && first + kFurther >= row_size) return;
          at_element<P, kFurther>(of_row, of.row[r.value], first,
                                  [&](const RowContext<P>& place, const i32(&x)[P::kDims])
                                      __attribute__((always_inline)) { use(place, first + kFurther, x); });
        }
      });
    });
  }

  /// each_vector over these rows, but one chunk after the other in a loop, each as number 0 of what is kept: code that
  /// is long is then fetched once. Chunks are in their order again in the end.
  template <class F>
  ARK_DEVICE void each_in_turn(F&& f) {
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      RowContext<P> of_row(c);
      of_row.writes = places.exists(r.value);
#pragma unroll 1
      for (int k = 0; k < P::kChunks; ++k) {
        const auto use = [&](const RowContext<P>& place, int at, const i32(&x)[P::kDims])
                             __attribute__((always_inline)) { f(r, Number<0>{}, place, at, x); };
        const int first = (group.thread() + k * P::kThreads) * V;
        if constexpr (P::kMasked)
          masked_vector(of_row, places, r.value, k, use);
        else if (P::kFull || first < row_size)
          at_element<P, 0>(of_row, places.row[r.value], first,
                           [&](const RowContext<P>& place, const i32(&x)[P::kDims])
                               __attribute__((always_inline)) { use(place, first, x); });
        rotate(kept[r.value]);
      }
    });
  }
  static ARK_DEVICE void rotate(typename P::template Inputs<V> (&chunks)[P::kChunks]) {
    const typename P::template Inputs<V> first = chunks[0];
    unrolled<P::kChunks - 1>([&](auto k) __attribute__((always_inline)) { chunks[k.value] = chunks[k.value + 1]; });
    chunks[P::kChunks - 1] = first;
  }

  template <class F>
  ARK_DEVICE void masked_vector(RowContext<P>& of_row, const RowPlaces<P>& of, int r, int chunk, F&& f) const {
    const abi::RowVector v =
        abi::row_vector(group.thread() + chunk * P::kThreads, V, of.shift[r], static_cast<int>(row_size));
    of_row.low = v.low;
    of_row.high = v.high;
    of_row.inside = v.inside;
    at_element<P, 0>(of_row, of.row[r], v.place,
                     [&](const RowContext<P>& place, const i32(&x)[P::kDims])
                         __attribute__((always_inline)) { f(place, v.at, x); });
  }
};

}  // namespace ark::device
