// The reduced elements that a thread of a column task takes, for V columns: half of the vectors that a thread may have
// in flight are asked for while the other half is added. With one reduced dimension, addresses walk (ColumnWalk).
#pragma once
#include "device/abi/column_ways.h"
#include "device/program/column_slots.cuh"
#include "device/program/in_flight.cuh"
#include "device/program/support.cuh"

namespace ark::device {

template <class P>
inline constexpr bool kColumnsWalk = abi::columns_walk(P::kReduceDims, P::kPlain, P::kVectorLoads, P::kNumOperands);

/// Loads of a program of plain accesses whose vectors are all aligned at the columns of x: per operand the place of
/// these columns in the first row, and the bytes from row to row.
template <class P>
struct ColumnWalk : ProgramContext {
  u64 first[P::kNumOperands];
  i32 step[P::kNumOperands];
  i32 low, high;     // columns of a vector that count
  bool fits = true;  // every distance is below 2^31 bytes

  static_assert(kColumnsWalk<P>);

  ARK_DEVICE ColumnWalk(const ProgramContext& c, const i32 (&x)[P::kDims], i32 from, i32 to)
      : ProgramContext(c), low(from), high(to) {
    i32 row[P::kDims];
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) row[d] = d < P::kReduceDims ? 0 : x[d];
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i) {
      const abi::Operand& o = operand(i);
      const int shift = element_shift(o.dtype);
      const i64 distance = o.stride[0] << shift;
      first[i] = static_cast<u64>(o.offset + (element_offset(o, row) << shift));
      step[i] = static_cast<i32>(distance);
      if ((P::kLoads >> i & 1) != 0) fits = fits && step[i] == distance;
    }
  }
  template <class S>
  ARK_DEVICE const S* at(int i, i32 row) const {
    return reinterpret_cast<const S*>(multiply_add_wide(row, step[i], static_cast<i64>(first[i])));
  }
};

template <int V, class S, int kDims, class P>
ARK_DEVICE void load_operand(const ColumnWalk<P>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  const S* p = c.template at<const S>(number, x[0]);
  if constexpr (V == 1)
    out.v[0] = load_element(p);
  else
    load_slot(p, c.low, c.high, out);
}

/// A number of a reduced place; one dimension has fewer than 2^31, and a step behind them fits as well.
template <int kReduceDims>
struct PlaceOf {
  using Type = i64;
};
template <>
struct PlaceOf<1> {
  using Type = u32;
};

/// Elements first, first + step, ... below `last` of the reduced range, at the kept coordinates of x; kDepth vectors in
/// flight.
template <class P, int V, int kDepth>
struct ColumnRows {
  static constexpr bool kHalves = kDepth >= 8;
  static constexpr int kBatch = kHalves ? kDepth / 2 : kDepth;
  using Place = typename PlaceOf<P::kReduceDims>::Type;
  using Inputs = typename P::template Inputs<V>;
  struct Batch {
    InFlight<Inputs> in[kBatch];
  };

  const abi::OpRecord& record;
  const Place last;
  const Place step;

  template <class Context>
  ARK_DEVICE void load(const Context& c, Place e, i32 (&x)[P::kDims], Batch& batch) const {
    unrolled<kBatch>([&](auto k) __attribute__((always_inline)) {
      const Place at = e + k.value * step;
      if (at < last) {
        unflatten_place(at, x);
        Inputs in;
        P::template load<V>(c, x, in);
        batch.in[k.value].put(in);
      }
    });
  }
  template <class Context, class A>
  ARK_DEVICE void add(const Context& c, Place e, i32 (&x)[P::kDims], const Batch& batch, A (&acc)[V]) const {
    const typename P::Uniform u{};
    unrolled<kBatch>([&](auto k) __attribute__((always_inline)) {
      const Place at = e + k.value * step;
      if (at < last) {
        unflatten_place(at, x);
        P::template element<V>(Pass<0>{}, c, x, at, batch.in[k.value].get(), u, acc, NoSink{});
      }
    });
  }

  template <class Context, class A>
  ARK_DEVICE void run(const Context& c, Place e, i32 (&x)[P::kDims], A (&acc)[V]) const {
    ARK_EACH acc[i].start();
    if constexpr (kHalves) {
      Batch batch[2];
      load(c, e, x, batch[0]);
#pragma unroll 1
      for (; e < last; e += 2 * kBatch * step) {
        load(c, e + kBatch * step, x, batch[1]);
        add(c, e, x, batch[0], acc);
        load(c, e + 2 * kBatch * step, x, batch[0]);
        add(c, e + kBatch * step, x, batch[1], acc);
      }
    } else {
#pragma unroll 1
      for (; e < last; e += kBatch * step) {
        Batch batch;
        load(c, e, x, batch);
        add(c, e, x, batch, acc);
      }
    }
  }

 private:
  ARK_DEVICE void unflatten_place(Place e, i32 (&x)[P::kDims]) const {
    if constexpr (P::kReduceDims == 1)
      x[0] = static_cast<i32>(e);
    else
      unflatten<0, P::kReduceDims>(record, e, x);
  }
};

}  // namespace ark::device
