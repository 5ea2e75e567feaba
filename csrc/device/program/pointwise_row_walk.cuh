// Pointwise items by the slots of their rows (row_slots.cuh): what is off the head's alignment is read across two
// aligned vectors, and what a slot holds beyond its row is computed from anything and not stored.
#pragma once
#include "device/program/pointwise_walk.cuh"
#include "device/program/row_slots.cuh"
#include "device/program/shifted_vector.cuh"

namespace ark::device {

template <class P>
inline constexpr bool kWalksRows = kWalks<P> && P::kFreeRows && P::kPlain;

template <class P>
struct SlotContext : VectorContext<P> {
  SlotPart part = {0, 0};

  ARK_DEVICE explicit SlotContext(const ProgramContext& c) : VectorContext<P>(c) {}
  ARK_DEVICE SlotContext of(SlotPart p) const {
    SlotContext c = *this;
    c.part = p;
    return c;
  }
  template <int V>
  ARK_DEVICE bool is_whole() const {
    return part.low == 0 && part.high == V;
  }
};

template <int V, class S, int kDims, class P>
ARK_DEVICE void load_operand(const SlotContext<P>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  const S* p = c.template at<const S>(number, x);
  const i32 stride = c.stride[number][kDims - 1];
  if (c.moves_together(number) && c.template is_whole<V>()) return load_vector(p, out);
  if (stride == 1) return load_shifted(p, c.part.low, c.part.high, out);
  if constexpr (V == 1) {
    out.v[0] = load_element(p);
  } else if (stride == 0) {
    const S same = load_element(p);
    ARK_EACH out.v[i] = same;
  } else {
    ARK_EACH if (i >= c.part.low && i < c.part.high) out.v[i] = load_element(p + static_cast<i64>(i) * stride);
  }
}
template <int V, class S, int kDims, class P>
ARK_DEVICE void store_operand(const SlotContext<P>& c, int number, const i32 (&x)[kDims], const Vec<S, V>& in) {
  S* p = c.template at<S>(number, x);
  if (c.moves_together(number) && c.template is_whole<V>()) return store_vector(p, in);
  ARK_EACH if (i >= c.part.low && i < c.part.high)
      store_element(p + static_cast<i64>(i) * c.stride[number][kDims - 1], in.v[i]);
}

template <class P>
class PointwiseRowWalk {
 public:
  static constexpr int V = P::kVector, kUnroll = P::kUnroll < 4 ? P::kUnroll : 4;

  ARK_DEVICE PointwiseRowWalk(Consumer& consumer, const ProgramContext& c, int head, i64 begin, i64 end)
      : consumer_(consumer), context_(c), slots_(c, head, begin, end) {}

  ARK_DEVICE void run() const {
    i32 n = consumer_.thread();
    if (n >= slots_.count) return;
    FlatWalk<P::kDims> walk(*context_.task.record, slots_.first + n, kConsumerThreads, slots_.each);
#pragma unroll 1
    for (; n < slots_.count; n += kUnroll * kConsumerThreads) {
      i32 x[kUnroll][P::kDims];
      SlotPart part[kUnroll];
      typename P::template Inputs<V> in[kUnroll];
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(k)::value;
#pragma unroll
        for (int d = 0; d < P::kDims; ++d) x[kNumber][d] = walk.x[d];
        part[kNumber] = slots_.part(x[kNumber]);
        if (n + kNumber * kConsumerThreads >= slots_.count) part[kNumber].high = part[kNumber].low;
        if (part[kNumber].low < part[kNumber].high)
          P::template load<V>(context_.of(part[kNumber]), x[kNumber], in[kNumber]);
        walk.advance();
      });
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(k)::value;
        if (part[kNumber].low < part[kNumber].high)
          P::template run_loaded<V>(context_.of(part[kNumber]), x[kNumber], in[kNumber], NoRoots{});
      });
    }
  }

 private:
  Consumer& consumer_;
  const SlotContext<P> context_;
  const RowSlots<P, V, ProgramContext> slots_;
};

}  // namespace ark::device
