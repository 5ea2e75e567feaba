// A row that is read again in every pass: longer than what registers hold, or of a length or place in memory that
// vectors do not divide. Vectors start where the operands are aligned (all of them are off by as much, else P::kVector
// is 1); the elements before and after go one by one.
#pragma once
#include "device/program/row_group.cuh"
#include "device/program/row_places.cuh"

namespace ark::device {

template <class P>
struct StreamedRow {
  static constexpr int V = P::kVector;

  const ProgramContext& c;
  const RowGroup& group;
  i64 row_size;
  RowPlaces<P> places = {};  // one row
  i64 begin = 0, end = 0;    // of the vectors

  ARK_DEVICE void load_ahead(const RowPlaces<P>&) const {}
  ARK_DEVICE void load_once() const {}
  ARK_DEVICE void start(const typename P::Uniform (&)[1]) {
    begin = min(static_cast<i64>(P::head(c, places.row[0])), row_size);
    end = begin + (row_size - begin) / V * V;
  }

  template <int kPass, class Sink, class FirstDone>
  ARK_DEVICE void run(typename P::Uniform (&all)[1], unsigned char* buffer, const Sink& sink,
                      const FirstDone& first_done) {
    typename P::Uniform& u = all[0];
    auto acc = P::accumulator(Pass<kPass>{});
    acc.start();
    constexpr int kMany = P::kInFlight[kPass], kFew = kMany > 1 ? kMany / 2 : 1;
    constexpr int kStep = P::kThreads * V;
    Batch<1, 1, false> edge;
    if constexpr (kEdges) {
      const i64 t = group.thread();
      edge.template load<kPass>(*this, t < begin ? t : end + t - begin, row_size, u);
    }
    i64 e = begin + group.thread() * V;
#pragma unroll 1
    for (; e + (kMany - 1) * kStep < end; e += kMany * kStep) vectors<kPass, kMany, true>(e, u, acc, sink);
#pragma unroll 1
    for (; e < end; e += kFew * kStep) vectors<kPass, kFew, false>(e, u, acc, sink);
    if constexpr (kEdges) edge.template use<kPass>(*this, u, acc, sink);
    group.reduce(acc, buffer);
    P::finish(acc, u);
    if constexpr (kPass + 1 < P::kPasses) run<kPass + 1>(all, buffer, sink, first_done);
  }

 private:
  static constexpr bool kEdges = V > 1 && P::kEdges;

  /// Vectors of kLength elements at first, first + step, ... below `limit` (kAll: kCount of them are).
  template <int kLength, int kCount, bool kAll>
  struct Batch {
    static constexpr int kStep = P::kThreads * kLength;
    typename P::template Inputs<kLength> in[kCount];
    i64 first, limit;

    template <int kPass>
    ARK_DEVICE void load(const StreamedRow& r, i64 from, i64 to, const typename P::Uniform& u) {
      first = from;
      limit = to;
      each(r, [&](auto k, const ProgramContext& place, const i32(&x)[P::kDims]) __attribute__((always_inline)) {
        P::template load<kLength>(Pass<kPass>{}, place, x, u, in[k.value]);
      });
    }
    template <int kPass, class A, class Sink>
    ARK_DEVICE void use(const StreamedRow& r, const typename P::Uniform& u, A& acc, const Sink& sink) {
      each(r, [&](auto k, const ProgramContext& place, const i32(&x)[P::kDims]) __attribute__((always_inline)) {
        const i64 at = first + k.value * kStep;
        P::template element<kLength>(Pass<kPass>{}, place, x, at, in[k.value], u, acc, sink.at(at));
      });
    }
    template <class F>
    ARK_DEVICE void each(const StreamedRow& r, F&& f) const {
      unrolled<kCount>([&](auto k) __attribute__((always_inline)) {
        if (!kAll && first + k.value * kStep >= limit) return;
        at_element<P, k.value * kStep>(r.c, r.places.row[0], first,
                                       [&](const ProgramContext& place, const i32(&x)[P::kDims])
                                           __attribute__((always_inline)) { f(k, place, x); });
      });
    }
  };

  template <int kPass, int kCount, bool kAll, class A, class Sink>
  ARK_DEVICE void vectors(i64 first, const typename P::Uniform& u, A& acc, const Sink& sink) const {
    Batch<V, kCount, kAll> batch;
    batch.template load<kPass>(*this, first, end, u);
    batch.template use<kPass>(*this, u, acc, sink);
  }
};

}  // namespace ark::device
