// Rows that their threads keep in registers from the first pass to the last, P::kRows of them at once, so that short
// rows have as much in flight as long ones. What only a later pass reads is asked for before the reduction that this
// pass waits for; where registers suffice (kAhead), what only the next rows read before the first reduction. With
// kEdges these are the vectors that lie in the row as a whole, of which some threads may have fewer, and the elements
// beside them (kEdgeElements), which aligned rows do not have.
#pragma once
#include "device/program/row_context.cuh"
#include "device/program/row_places.cuh"

namespace ark::device {

/// What comes in of the rows that a thread keeps.
template <class P>
struct RowInputs {
  static constexpr int kEdgeElements = P::kEdgeElements > 0 ? P::kEdgeElements : 1;
  typename P::template Inputs<P::kVector> vectors[P::kRows][P::kChunks];
  typename P::template Inputs<1> edges[P::kRows][kEdgeElements];

  /// Of row r number k, by how many elements it has.
  template <int kLength>
  ARK_DEVICE typename P::template Inputs<kLength>& part(int r, int k) {
    if constexpr (kLength == P::kVector)
      return vectors[r][k];
    else
      return edges[r][k];
  }
};

/// Has the vector come in here: what is loaded before a loop is else waited for within it, together with what is asked
/// for there. `there`: true, which the compiler does not know.
template <class S, int V>
ARK_DEVICE void settle_vector(Vec<S, V>& vector, bool there) {
  if constexpr (V * sizeof(S) >= 4) {
    constexpr int kWords = V * static_cast<int>(sizeof(S)) / 4;
    u32 words[kWords];
    __builtin_memcpy(words, &vector, sizeof(words));
    unrolled<kWords>([&](auto w) __attribute__((always_inline)) { words[w.value] = there ? words[w.value] : 0; });
    __builtin_memcpy(&vector, words, sizeof(words));
  }
}

template <class P>
struct KeptRows {
  static constexpr int V = P::kVector, kRows = P::kRows;
  static constexpr bool kAligned = !P::kEdges || P::kEdgeElements == 0;  // rows begin with a vector
  using Uniforms = typename P::Uniform[kRows];

  const ProgramContext& c;
  const RowGroup& group;
  i64 row_size;
  RowPlaces<P> places = {};
  RowInputs<P> ahead = {}, kept = {};  // what rows have in common stays in `ahead`
  i32 standing[kRows] = {};            // kStanding: where the vectors of its rows began, and one

  /// What the first pass over these rows needs and no others do, asked for while the rows before are worked on.
  ARK_DEVICE void load_ahead(const RowPlaces<P>& of) {
    if constexpr (P::kAhead)
      each_part(of, [&](auto r, auto k, auto length, const RowContext<P>& place, int,
                        const i32(&x)[P::kDims]) __attribute__((always_inline)) {
        P::template load_ahead<length.value>(place, x, ahead.template part<length.value>(r.value, k.value));
      });
  }
  /// What stands however rows are aligned, behind what has been loaded ahead of the first of them.
  ARK_DEVICE void load_once() {
    if constexpr (P::kStanding && kAligned) {
      load_standing();
      unrolled<P::kChunks>([&](auto k)
                               __attribute__((always_inline)) { P::settle(ahead.vectors[0][k.value], row_size > 0); });
    }
  }
  ARK_DEVICE void start(const Uniforms& u) {
    if constexpr (P::kStanding && !kAligned) load_where_it_changes();
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      unrolled<P::kChunks>([&](auto k) __attribute__((always_inline)) {
        kept.vectors[r.value][k.value] = ahead.vectors[r.value][k.value];
      });
      unrolled<P::kEdgeElements>(
          [&](auto k) __attribute__((always_inline)) { kept.edges[r.value][k.value] = ahead.edges[r.value][k.value]; });
    });
    load<0>(u);
  }

  /// `first_done` is called when the first pass has used what was loaded ahead.
  template <int kPass, class Sink, class FirstDone>
  ARK_DEVICE void run(Uniforms& u, unsigned char* buffer, const Sink& sink, const FirstDone& first_done) {
    RowAccumulators<decltype(P::accumulator(Pass<kPass>{})), kRows> acc;
    acc.start();
    const auto use = [&](auto r, auto k, auto length, const RowContext<P>& place, int at,
                         const i32(&x)[P::kDims]) __attribute__((always_inline)) {
      P::template element<length.value>(Pass<kPass>{}, place, x, at, kept.template part<length.value>(r.value, k.value),
                                        u[r.value], acc.row[r.value], sink.at(at));
    };
    if constexpr (P::kInTurn)
      each_in_turn(use);
    else
      each_part(places, use);
    if constexpr (kPass == 0) first_done();
    if constexpr (kPass + 1 < P::kPasses) load<kPass + 1>(u);
    group.reduce(acc, buffer);
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) { P::finish(acc.row[r.value], u[r.value]); });
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(u, buffer, sink, first_done);
  }

 private:
  /// Of what all rows have in common, vectors begin where the row's do: that is looked up and moved into place again
  /// only where a row is aligned in another way than those before, which are mostly a multiple of V rows away.
  ARK_DEVICE void load_where_it_changes() {
    bool same = true;
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      same = same && standing[r.value] == places.begin[r.value] + 1;
      standing[r.value] = places.begin[r.value] + 1;
    });
    if (!same) load_standing();
  }
  ARK_DEVICE void load_standing() {
    each_part(places, [&](auto r, auto k, auto length, const RowContext<P>& place, int,
                          const i32(&x)[P::kDims]) __attribute__((always_inline)) {
      P::template load_standing<length.value>(place, x, ahead.template part<length.value>(r.value, k.value));
    });
  }

  template <int kPass>
  ARK_DEVICE void load(const Uniforms& u) {
    each_part(places, [&](auto r, auto k, auto length, const RowContext<P>& place, int, const i32(&x)[P::kDims])
                          __attribute__((always_inline)) {
                            P::template load_more<length.value>(Pass<kPass>{}, place, x, u[r.value],
                                                                kept.template part<length.value>(r.value, k.value));
                          });
  }

  ARK_DEVICE RowContext<P> context_of(const RowPlaces<P>& of, int r) const {
    RowContext<P> of_row(c);
    of_row.writes = of.exists(r);
    return of_row;
  }

  /// f(row, number, length, context, first element, coordinates) for the thread's vectors and edges. kFull: every
  /// thread has all of its vectors, so that nothing is conditional and the compiler keeps what passes have in common.
  /// kEdges: nor is anything that is loaded or computed; the context says what counts, from vector kSure on.
  template <class F>
  ARK_DEVICE void each_part(const RowPlaces<P>& of, F&& f) const {
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      RowContext<P> of_row = context_of(of, r.value);
      unrolled<P::kChunks>([&](auto k) __attribute__((always_inline)) {
        constexpr int kFurther = k.value * P::kThreads * V;
        const auto use = [&](const RowContext<P>& place, int at, const i32(&x)[P::kDims])
                             __attribute__((always_inline)) { f(r, k, Number<V>{}, place, at, x); };
        if constexpr (P::kEdges && k.value >= P::kSure) {
          vector_at(of_row, of, r.value, k.value, use);
        } else {
          const int first = group.thread() * V + (P::kEdges ? of.begin[r.value] : 0);
          if (!P::kEdges && !P::kFull && first + kFurther >= row_size) return;
          at_element<P, kFurther>(of_row, of.row[r.value], first,
                                  [&](const RowContext<P>& place, const i32(&x)[P::kDims])
                                      __attribute__((always_inline)) { use(place, first + kFurther, x); });
        }
      });
      edges(of_row, of, r, f);
    });
  }

  /// each_part over these rows, but one chunk after the other in a loop, each as number 0 of what is kept: code that
  /// is long is then fetched once. Chunks are in their order again in the end.
  template <class F>
  ARK_DEVICE void each_in_turn(F&& f) {
    unrolled<kRows>([&](auto r) __attribute__((always_inline)) {
      RowContext<P> of_row = context_of(places, r.value);
#pragma unroll 1
      for (int k = 0; k < P::kChunks; ++k) {
        const auto use = [&](const RowContext<P>& place, int at, const i32(&x)[P::kDims])
                             __attribute__((always_inline)) { f(r, Number<0>{}, Number<V>{}, place, at, x); };
        const int first = (group.thread() + k * P::kThreads) * V;
        if constexpr (P::kEdges)
          vector_at(of_row, places, r.value, k, use);
        else if (P::kFull || first < row_size)
          at_element<P, 0>(of_row, places.row[r.value], first,
                           [&](const RowContext<P>& place, const i32(&x)[P::kDims])
                               __attribute__((always_inline)) { use(place, first, x); });
        rotate(kept.vectors[r.value]);
      }
      edges(of_row, places, r, f);
    });
  }
  static ARK_DEVICE void rotate(typename P::template Inputs<V> (&chunks)[P::kChunks]) {
    const typename P::template Inputs<V> first = chunks[0];
    unrolled<P::kChunks - 1>([&](auto k) __attribute__((always_inline)) { chunks[k.value] = chunks[k.value + 1]; });
    chunks[P::kChunks - 1] = first;
  }

  template <class F>
  ARK_DEVICE void vector_at(RowContext<P>& of_row, const RowPlaces<P>& of, int r, int chunk, F&& f) const {
    const abi::RowPart part = abi::row_vector(vectors_of(of, r), group.thread() + chunk * P::kThreads, V);
    part_at(of_row, of.row[r], part, f);
  }
  template <class Row, class F>
  ARK_DEVICE void edges(RowContext<P>& of_row, const RowPlaces<P>& of, Row r, F&& f) const {
    unrolled<P::kEdgeElements>([&](auto k) __attribute__((always_inline)) {
      const abi::RowPart part =
          abi::row_edge(vectors_of(of, r.value), group.thread() + k.value * P::kThreads, V, static_cast<int>(row_size));
      part_at(of_row, of.row[r.value], part,
              [&](const RowContext<P>& place, int at, const i32(&x)[P::kDims])
                  __attribute__((always_inline)) { f(r, k, Number<1>{}, place, at, x); });
    });
  }
  template <class F>
  ARK_DEVICE void part_at(RowContext<P>& of_row, const i32 (&row)[P::kDims], const abi::RowPart& part, F&& f) const {
    of_row.inside = part.inside;
    at_element<P, 0>(of_row, row, part.at,
                     [&](const RowContext<P>& place, const i32(&x)[P::kDims])
                         __attribute__((always_inline)) { f(place, part.at, x); });
  }
  ARK_DEVICE abi::RowVectors vectors_of(const RowPlaces<P>& of, int r) const {
    return abi::row_vectors(of.begin[r], V, static_cast<int>(row_size));
  }
};

}  // namespace ark::device
