// Pointwise items by the slots of their rows (row_slots.cuh): what is off the head's alignment is read across two
// aligned vectors and moved when all loads are on their way (shifted_vector.cuh); what a slot holds beyond its row is
// computed from anything and not stored.
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

/// What the operand has at the slot, moved into place by take_operand.
template <int V, class S, int kDims, class P>
ARK_DEVICE void hold_operand(const SlotContext<P>& c, int number, const i32 (&x)[kDims], HeldVector<S, V>& out) {
  const S* p = c.template at<const S>(number, x);
  const i32 stride = c.stride[number][kDims - 1];
  if (V > 1 && c.moves_together(number)) return hold_aligned(p, c.part.low, c.part.high, out);
  if (V > 1 && stride == 1) return hold_shifted(p, c.part.low, c.part.high, out);
  Vec<S, V> all;
  if (V == 1 || stride == 0) {
    const S same = load_element(p);
    ARK_EACH all.v[i] = same;
  } else {
    ARK_EACH if (i >= c.part.low && i < c.part.high) all.v[i] = load_element(p + static_cast<i64>(i) * stride);
  }
  out.set(all);
}
template <int V, class S, class P>
ARK_DEVICE void take_operand(const SlotContext<P>& c, int number, const HeldVector<S, V>& held, Vec<S, V>& out) {
  if (V == 1 || c.moves_together(number)) return held.get(out);
  held.get_moved(out);
}
template <int V, class S, int kDims, class P>
ARK_DEVICE void load_operand(const SlotContext<P>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  HeldVector<S, V> held;
  hold_operand<V>(c, number, x, held);
  take_operand<V>(c, number, held, out);
}
template <int V, class S, int kDims, class P>
ARK_DEVICE void store_operand(const SlotContext<P>& c, int number, const i32 (&x)[kDims], const Vec<S, V>& in) {
  S* p = c.template at<S>(number, x);
  if (c.moves_together(number)) {
    if (c.template is_whole<V>()) return store_vector(p, in);
    ARK_EACH if (i >= c.part.low && i < c.part.high) store_element(p + i, in.v[i]);
  } else {
    const i32 stride = c.stride[number][kDims - 1];
    ARK_EACH if (i >= c.part.low && i < c.part.high) store_element(p + static_cast<i64>(i) * stride, in.v[i]);
  }
}

template <class P>
class PointwiseRowWalk {
 public:
  static constexpr int V = P::kVector, kUnroll = P::kHeldUnroll;

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
      typename P::template HeldInputs<V> held[kUnroll];
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(k)::value;
#pragma unroll
        for (int d = 0; d < P::kDims; ++d) x[kNumber][d] = walk.x[d];
        part[kNumber] = slots_.part(x[kNumber]);
        if (n + kNumber * kConsumerThreads >= slots_.count) part[kNumber].high = part[kNumber].low;
        if (part[kNumber].low < part[kNumber].high)
          P::template hold<V>(context_.of(part[kNumber]), x[kNumber], held[kNumber]);
        walk.advance();
      });
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        constexpr int kNumber = decltype(k)::value;
        if (part[kNumber].low >= part[kNumber].high) return;
        typename P::template Inputs<V> in;
        P::template take<V>(context_.of(part[kNumber]), held[kNumber], in);
        P::template run_loaded<V>(context_.of(part[kNumber]), x[kNumber], in, NoRoots{});
      });
    }
  }

 private:
  Consumer& consumer_;
  const SlotContext<P> context_;
  const RowSlots<P, V, ProgramContext> slots_;
};

}  // namespace ark::device
