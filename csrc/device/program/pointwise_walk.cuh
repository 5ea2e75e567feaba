// Pointwise items that lie in whole vectors: coordinates walk along with the thread, so that no vector divides, and
// what the records say of the operands is in registers, where it would be read anew behind every store.
#pragma once
#include "device/program/flat_places.cuh"
#include "device/program/operand_sizes.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// What the context takes of the registers leaves enough for the vectors in flight.
template <class P>
inline constexpr bool kWalks = P::kVector > 1 && !P::kFlagged && P::kNumOperands > 0 &&
                               (P::kDims + 2) * P::kNumOperands <= 48;

template <class P>
struct VectorContext : ProgramContext {
  u64 base[P::kNumOperands];
  i32 stride[P::kNumOperands][P::kDims];
  u32 together = 0;  // bit i: operand i moves by vectors

  static_assert(kWalks<P>);

  ARK_DEVICE explicit VectorContext(const ProgramContext& c) : ProgramContext(c) {
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i) {
      const abi::Operand& o = operand(i);
      base[i] = o.offset;
      if (o.vector >= operand_together<P, P::kVector>(i)) together |= 1u << i;
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) stride[i][d] = static_cast<i32>(o.stride[d]);
    }
  }
  /// Elements from operand i's first to the one at x.
  ARK_DEVICE i64 place(int i, const i32 (&x)[P::kDims]) const {
    i64 elements = 0;
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) elements = multiply_add_wide(x[d], stride[i][d], elements);
    return elements;
  }
  template <class S>
  ARK_DEVICE S* at(int i, const i32 (&x)[P::kDims]) const {
    return reinterpret_cast<S*>(base[i]) + place(i, x);
  }
  ARK_DEVICE bool moves_together(int i) const { return (together >> i & 1) != 0; }
};

template <int V, class S, int kDims, class P>
ARK_DEVICE void load_operand(const VectorContext<P>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  const S* p = c.template at<const S>(number, x);
  if (V > 1 && c.moves_together(number)) return load_vector(p, out);
  const i32 stride = c.stride[number][kDims - 1];
  const S first = load_element(p);
  if (V == 1 || stride == 0) {
    ARK_EACH out.v[i] = first;
  } else {
    ARK_EACH out.v[i] = load_element(p + static_cast<i64>(i) * stride);
  }
}
template <int V, class S, int kDims, class P>
ARK_DEVICE void store_operand(const VectorContext<P>& c, int number, const i32 (&x)[kDims], const Vec<S, V>& in) {
  S* p = c.template at<S>(number, x);
  if (V > 1 && c.moves_together(number)) return store_vector(p, in);
  ARK_EACH store_element(p + static_cast<i64>(i) * c.stride[number][kDims - 1], in.v[i]);
}

template <class P>
class PointwiseWalk {
 public:
  /// Where all operands move by vectors pointwise_whole.cuh serves; an element at a time, few vectors are many loads.
  static constexpr int V = P::kVector, kUnroll = P::kUnroll < 4 ? P::kUnroll : 4;
  static constexpr i32 kDistance = kConsumerThreads * V;

  ARK_DEVICE PointwiseWalk(Consumer& consumer, const ProgramContext& c) : consumer_(consumer), context_(c) {}

  /// Elements [low, high), whole vectors, none of which ends behind its row.
  ARK_DEVICE void run(i64 low, i64 high) const {
    const i32 count = static_cast<i32>(high - low);
    i32 e = consumer_.thread() * V;
    if (e >= count) return;
    FlatWalk<P::kDims> walk(*context_.task.record, low + e, kDistance);
#pragma unroll 1
    for (; e < count; e += kUnroll * kDistance) {
      i32 x[kUnroll][P::kDims];
      typename P::template Inputs<V> in[kUnroll];
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
#pragma unroll
        for (int d = 0; d < P::kDims; ++d) x[k.value][d] = walk.x[d];
        if (e + k.value * kDistance < count) P::template load<V>(context_, x[k.value], in[k.value]);
        walk.advance();
      });
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        if (e + k.value * kDistance < count) P::template run_loaded<V>(context_, x[k.value], in[k.value], NoRoots{});
      });
    }
  }

 private:
  Consumer& consumer_;
  const VectorContext<P> context_;
};

}  // namespace ark::device
