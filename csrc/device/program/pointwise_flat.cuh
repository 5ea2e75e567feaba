// Pointwise items of programs whose results are contiguous over the whole domain: their vectors lie where those are
// aligned, whatever the rows' length. A vector ends in the row that it begins in or in the next one. What is the same
// along a row is computed once per vector for each of the two, by coordinates that walk along with the thread.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

/// Coordinates of a thread's vectors: each lies a constant number of elements behind the one before, so that no
/// division is needed.
template <int kDims>
struct FlatWalk {
  i32 size[kDims], step[kDims], x[kDims];

  ARK_DEVICE FlatWalk(const abi::OpRecord& r, i32 first, i32 distance) {
#pragma unroll
    for (int d = 0; d < kDims; ++d) size[d] = static_cast<i32>(r.size[d]);
    unflatten<0, kDims>(r, first, x);
    unflatten<0, kDims>(r, distance, step);
  }
  ARK_DEVICE void advance() {
    i32 carry = 0;
#pragma unroll
    for (int d = kDims - 1; d > 0; --d) {
      x[d] += step[d] + carry;
      carry = x[d] >= size[d] ? 1 : 0;
      if (carry != 0) x[d] -= size[d];
    }
    x[0] += step[0] + carry;
  }
  /// The first element of the next row.
  ARK_DEVICE void next_row(i32 (&next)[kDims]) const {
    next[kDims - 1] = 0;
    i32 carry = 1;
#pragma unroll
    for (int d = kDims - 2; d > 0; --d) {
      next[d] = x[d] + carry;
      carry = next[d] == size[d] ? 1 : 0;
      if (carry != 0) next[d] = 0;
    }
    next[0] = x[0] + carry;
  }
};

/// A vector: its first element in the flattened domain and by coordinates, the first element of the next row, how many
/// elements lie before that.
template <int kDims>
struct FlatPlace {
  i32 e = 0, cut = 0;
  i32 x[kDims] = {}, next[kDims] = {};
};

/// Addresses and strides of the operands, in registers: what the record says would be read anew behind every store.
template <class P>
struct FlatContext : ProgramContext {
  u64 base[P::kNumOperands];
  i32 stride[P::kNumOperands][P::kDims];
  bool moves_together[P::kNumOperands];

  ARK_DEVICE explicit FlatContext(const ProgramContext& c) : ProgramContext(c) {
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i) {
      const abi::Operand& o = operand(i);
      base[i] = o.offset;
      moves_together[i] = o.vector >= min(P::kVector, 16 / element_bytes(o.dtype));
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) stride[i][d] = static_cast<i32>(o.stride[d]);
    }
  }
  /// Element at x of operand i, without the part of the last dimension.
  template <class S>
  ARK_DEVICE const S* row(int i, const i32 (&x)[P::kDims]) const {
    i64 at = 0;
#pragma unroll
    for (int d = 0; d + 1 < P::kDims; ++d) at = multiply_add_wide(x[d], stride[i][d], at);
    return reinterpret_cast<const S*>(base[i]) + at;
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
/// The value of an operand that is the same along the row of x.
template <class S, class P>
ARK_DEVICE void load_row_value(const FlatContext<P>& c, int number, const i32 (&x)[P::kDims], Vec<S, 1>& out) {
  out.v[0] = load_element(c.template row<S>(number, x));
}
/// V elements of any other operand: it has a row for each of the vector's two.
template <int V, class S, class P>
ARK_DEVICE void load_across(const FlatContext<P>& c, int number, const FlatPlace<P::kDims>& place, Vec<S, V>& out) {
  constexpr int kLast = P::kDims - 1;
  const i64 stride = c.stride[number][kLast];
  const S* first = c.template row<S>(number, place.x) + place.x[kLast] * stride;
  if (place.cut >= V) {
    if (c.moves_together[number]) return load_vector(first, out);
    if (stride == 1) {
      ARK_EACH out.v[i] = load_element(first + i);
    } else {
      ARK_EACH out.v[i] = load_element(first + i * stride);
    }
    return;
  }
  const S* second = c.template row<S>(number, place.next) - place.cut * stride;
  ARK_EACH out.v[i] = load_element((i < place.cut ? first : second) + i * stride);
}

/// Elements [low, high) of an item lie in vectors where all flat operands are aligned.
template <class P>
struct FlatRange {
  i32 low = 0, high = 0, row = 0;
  bool exists = false;

  ARK_DEVICE FlatRange(const ProgramContext& c, i64 begin, i64 end, i64 total) {
    constexpr int V = P::kVector;
    constexpr i64 kMost = 1ll << 30;  // so that no place behind the last vector needs more than 32 bits
    if (total > kMost) return;
    row = static_cast<i32>(c.task.record->size[P::kDims - 1]);
    const abi::Operand& head = c.operand(P::kFlatHead);
    const i64 place = head.offset / element_bytes(head.dtype);
    low = static_cast<i32>(begin + (-(place + begin) & (V - 1)));
    bool aligned = row >= V;
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i) {
      if ((P::kFlatOperands >> i & 1) == 0) continue;
      const abi::Operand& o = c.operand(i);
      const int bytes = element_bytes(o.dtype);
      aligned = aligned && ((o.offset + static_cast<i64>(low) * bytes) & (min(V * bytes, 16) - 1)) == 0;
    }
    high = low + static_cast<i32>(end - low) / V * V;
    exists = aligned && low < end;
  }
};

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
    FlatWalk<P::kDims> walk(*context_.task.record, e, kDistance);
#pragma unroll 1
    for (; e < high; e += kUnroll * kDistance) {
      FlatPlace<P::kDims> place[kUnroll];
      typename P::template FlatInputs<V> in[kUnroll];
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
                       typename P::template FlatInputs<V>& in, typename P::RowInputs& first,
                       typename P::RowInputs& second) const {
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) place.x[d] = walk.x[d];
    place.cut = kCross ? walk.size[kLast] - walk.x[kLast] : V;
    if constexpr (kCross) walk.next_row(place.next);
    P::template load_flat_vectors<V>(context_, place, in);
    P::load_row(context_, place.x, first);
    if (kCross && place.cut < V) P::load_row(context_, place.next, second);
  }
  ARK_DEVICE void compute(const FlatPlace<P::kDims>& place, const typename P::template FlatInputs<V>& in,
                          const typename P::RowInputs& first, const typename P::RowInputs& second) const {
    const typename P::RowValues values = P::row_values(context_, place.x, first);
    if constexpr (kCross)
      P::template run_flat<V>(context_, place.e, place.cut, in, values, P::row_values(context_, place.next, second));
    else
      P::template run_flat<V>(context_, place.e, V, in, values, values);
  }

  Consumer& consumer_;
  const FlatContext<P> context_;
};

}  // namespace ark::device
