// Pointwise items of programs whose results are contiguous over the whole domain: their vectors lie where those are
// aligned, whatever the rows' length. A vector ends in the row that it begins in or in the next one. What is the same
// along a row is computed once per vector for each of the two, by coordinates that walk along with the thread. What
// differs along a row is loaded as aligned pieces and moved into place once all loads are on their way.
#pragma once
#include "device/program/flat_places.cuh"
#include "device/program/shifted_vector.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// Addresses and strides of the operands, in registers: what the record says would be read anew behind every store.
template <class P>
struct FlatContext : ProgramContext {
  u64 base[P::kNumOperands];
  i32 stride[P::kNumOperands][P::kDims];

  ARK_DEVICE explicit FlatContext(const ProgramContext& c) : ProgramContext(c) {
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i) {
      const abi::Operand& o = operand(i);
      base[i] = o.offset;
#pragma unroll
      for (int d = 0; d < P::kDims; ++d)
        stride[i][d] = d + 1 < P::kDims || (P::kAcrossOperands >> i & 1) != 0 ? static_cast<i32>(o.stride[d]) : 0;
    }
  }
  /// Element at x of operand i; places in elements have 32 bits (codegen/kernel.cpp sees to it).
  template <class S>
  ARK_DEVICE const S* at(int i, const i32 (&x)[P::kDims], i32 further = 0) const {
    i32 place = further;
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) place += x[d] * stride[i][d];
    return reinterpret_cast<const S*>(base[i]) + place;
  }
};

/// V elements of an operand that is contiguous over the whole domain.
template <int V, class S, class P>
ARK_DEVICE void load_flat(const FlatContext<P>& c, int number, const FlatPlace<P::kDims>& place, Vec<S, V>& out) {
  load_vector(reinterpret_cast<const S*>(c.base[number]) + place.e, out);
}
template <int V, class S, class P>
ARK_DEVICE void store_flat(const FlatContext<P>& c, int number, i32 e, const Vec<S, V>& in) {
  store_vector(reinterpret_cast<S*>(c.base[number]) + e, in);
}
/// The value of an operand that is the same along the row of x, where its stride is 0.
template <class S, class P>
ARK_DEVICE void load_row_value(const FlatContext<P>& c, int number, const i32 (&x)[P::kDims], Vec<S, 1>& out) {
  out.v[0] = load_element(c.template at<S>(number, x));
}
/// V elements of any other operand, as they are loaded: what the vector has of the row that it begins in, and of the
/// next one.
template <class S, int V, bool kCross>
struct AcrossVector {
  HeldVector<S, V> first;
};
template <class S, int V>
struct AcrossVector<S, V, true> {
  HeldVector<S, V> first, second;
};
template <int V, class S, bool kCross, class P>
ARK_DEVICE void load_across(const FlatContext<P>& c, int number, const FlatPlace<P::kDims>& place,
                            AcrossVector<S, V, kCross>& out) {
  const i32 stride = c.stride[number][P::kDims - 1];
  const S* first = c.template at<S>(number, place.x);
  if (stride == 1) {
    hold_shifted(first, 0, kCross ? min(place.cut, V) : V, out.first);
    if constexpr (kCross)
      if (place.cut < V) hold_shifted(c.template at<S>(number, place.next, -place.cut), place.cut, V, out.second);
    return;
  }
  const S* second = first;
  if (kCross && place.cut < V) second = c.template at<S>(number, place.next, -place.cut * stride);
  Vec<S, V> all;
  ARK_EACH all.v[i] = load_element((i < place.cut ? first : second) + i * stride);
  out.first.set(all);
}
template <int V, class S, bool kCross, class P>
ARK_DEVICE void take_across(const FlatContext<P>& c, int number, const FlatPlace<P::kDims>& place,
                            const AcrossVector<S, V, kCross>& held, Vec<S, V>& out) {
  held.first.get_moved(out);
  if constexpr (kCross) {
    if (place.cut >= V || c.stride[number][P::kDims - 1] != 1) return;
    Vec<S, V> second;
    held.second.get_moved(second);
    join_vectors(place.cut, out, second, out);
  }
}

/// kCross: rows end within vectors.
template <class P, bool kCross>
class PointwiseFlat {
 public:
  static constexpr int V = P::kVector, kLast = P::kDims - 1, kUnroll = P::kFlatUnroll;
  static constexpr i32 kDistance = kConsumerThreads * V;

  ARK_DEVICE PointwiseFlat(Consumer& consumer, const ProgramContext& c) : consumer_(consumer), context_(c) {}

  ARK_DEVICE void run(i32 low, i32 high) {
    i32 e = low + consumer_.thread() * V;
    if (e >= high) return;
    auto walk = FlatWalk<P::kDims>::near(*context_.task.record, static_cast<u32>(e), kDistance);
#pragma unroll 1
    for (; e < high; e += kUnroll * kDistance) {
      FlatPlace<P::kDims> place[kUnroll];
      typename P::template FlatInputs<V, kCross> in[kUnroll];
      typename P::RowInputs first[kUnroll], second[kUnroll];
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(k)::value;
        place[kNumber].e = e + kNumber * kDistance;
        if (place[kNumber].e < high) load(walk, place[kNumber], in[kNumber], first[kNumber], second[kNumber]);
        walk.advance();
      });
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(k)::value;
        if (place[kNumber].e < high) compute(place[kNumber], in[kNumber], first[kNumber], second[kNumber]);
      });
    }
  }

 private:
  ARK_DEVICE void load(const FlatWalk<P::kDims>& walk, FlatPlace<P::kDims>& place,
                       typename P::template FlatInputs<V, kCross>& in, typename P::RowInputs& first,
                       typename P::RowInputs& second) const {
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) place.x[d] = walk.x[d];
    place.cut = kCross ? walk.size[kLast] - walk.x[kLast] : V;
    if constexpr (kCross) walk.next_row(place.next);
    P::template load_flat_vectors<V, kCross>(context_, place, in);
    P::load_row(context_, place.x, first);
    if (kCross && place.cut < V) P::load_row(context_, place.next, second);
  }
  ARK_DEVICE void compute(const FlatPlace<P::kDims>& place, const typename P::template FlatInputs<V, kCross>& in,
                          const typename P::RowInputs& first, const typename P::RowInputs& second) const {
    const typename P::RowValues values = P::row_values(context_, place.x, first);
    typename P::RowValues others = values;
    if (kCross && place.cut < V) others = P::row_values(context_, place.next, second);
    typename P::template FlatVectors<V> vectors;
    P::template take_flat_vectors<V, kCross>(context_, place, in, vectors);
    P::template run_flat<V>(context_, place.e, place.cut, vectors, values, others);
  }

  Consumer& consumer_;
  const FlatContext<P> context_;
};

}  // namespace ark::device
