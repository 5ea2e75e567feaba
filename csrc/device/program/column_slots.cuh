// Columns whose rows begin anywhere between aligned addresses. A row has slots of V columns where one operand, the
// head, is aligned. A thread takes only rows of one alignment, so that its slot is the same columns in all of them;
// what a slot holds beyond the columns of a round is read with it, computed and dropped.
#pragma once
#include "device/abi/column_slots.h"
#include "device/program/shifted_vector.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// Loads of a program of plain accesses, for a slot of which columns [low, high) count.
/// kKnown: all that it reads by vectors is aligned where the head is.
template <bool kKnown>
struct ColumnSlotContext : ProgramContext {
  u32 together;  // bit i: operand i is aligned where the head is
  i32 low, high;

  ARK_DEVICE ColumnSlotContext(const ProgramContext& c, u32 aligned, i32 from, i32 to)
      : ProgramContext(c), together(aligned), low(from), high(to) {}
  ARK_DEVICE bool moves_together(int i) const { return kKnown || (together >> (i & 31) & 1) != 0; }
};

/// An aligned slot: no 16 bytes are read that have none of its elements.
template <class S, int V>
ARK_DEVICE void load_slot(const S* p, int low, int high, Vec<S, V>& out) {
  constexpr int kPiece = kTogether<S, V>;
  if constexpr (kPiece == V) {
    load_vector(p, out);
  } else {
    const int lowest = low & ~(kPiece - 1), highest = (high - 1) & ~(kPiece - 1);
#pragma unroll
    for (int i = 0; i < V; i += kPiece) {
      Vec<S, kPiece> piece;
      load_vector(p + min(max(i, lowest), highest), piece);
#pragma unroll
      for (int k = 0; k < kPiece; ++k) out.v[i + k] = piece.v[k];
    }
  }
}

template <int V, class S, int kDims, bool kKnown>
ARK_DEVICE void load_operand(const ColumnSlotContext<kKnown>& c, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  const abi::Operand& o = c.operand(number);
  if constexpr (V == 1) {
    out.v[0] = load_element(reinterpret_cast<const S*>(o.offset) + element_offset(o, x));
  } else {
    if (c.moves_together(number))
      return load_slot(reinterpret_cast<const S*>(o.offset) + vector_offset(o, x), c.low, c.high, out);
    const S* p = reinterpret_cast<const S*>(o.offset) + element_offset(o, x);
    const i64 stride = o.stride[kDims - 1];
    if (stride == 1) return load_shifted(p, c.low, c.high, out);
    if (stride == 0) {
      const S same = load_element(p);
      ARK_EACH out.v[i] = same;
    } else {
      ARK_EACH if (i >= c.low && i < c.high) out.v[i] = load_element(p + i * stride);
    }
  }
}

/// The first operand that moves along rows and from row to row, and what is aligned where it is.
template <class P, int V>
struct ColumnHead {
  int operand = -1, period = 1;
  bool aligned = true;  // at all multiples of V in every row
  u32 together = 0;

  ARK_DEVICE explicit ColumnHead(const ProgramContext& c) {
    const abi::OpRecord& r = *c.task.record;
#pragma unroll 1
    for (int i = P::kNumOperands - 1; i >= 0; --i) {
      if ((P::kVectorLoads >> i & 1) == 0 || c.operand(i).stride[P::kDims - 1] != 1) continue;
      bool moves = false;
      for (int d = 0; d < P::kReduceDims; ++d) moves = moves || c.operand(i).stride[d] != 0;
      if (moves) operand = i;
    }
    if (operand < 0) return;
    const abi::Operand& head = c.operand(operand);
    i64 steps = place(head);
#pragma unroll 1
    for (int d = 0; d + 1 < P::kDims; ++d)
      if (r.size[d] > 1) steps |= head.stride[d];
    aligned = (steps & (V - 1)) == 0;
    if (P::kReduceDims > 0) period = abi::alignment_period(head.stride[max(P::kReduceDims - 1, 0)] & (V - 1), V);
    // rows behind the end of an outer dimension would be aligned in another way
#pragma unroll 1
    for (int d = 0; d + 1 < P::kReduceDims; ++d)
      if (((head.stride[d] - head.stride[d + 1] * r.size[d + 1]) & (V - 1)) != 0) operand = -1;
#pragma unroll 1
    for (int i = 0; i < P::kNumOperands; ++i)
      if ((P::kVectorLoads >> i & 1) != 0 && is_like(r, c.operand(i), head)) together |= 1u << i;
  }
  ARK_DEVICE bool all_together() const { return together == P::kVectorLoads; }

  /// Columns between the last place at or before x where the head is aligned, and x.
  ARK_DEVICE int phase(const ProgramContext& c, const i32 (&x)[P::kDims]) const {
    const abi::Operand& o = c.operand(operand);
    return static_cast<int>((place(o) + element_offset(o, x)) & (V - 1));
  }

 private:
  static ARK_DEVICE i64 place(const abi::Operand& o) { return o.offset >> element_shift(o.dtype); }
  static ARK_DEVICE bool is_like(const abi::OpRecord& r, const abi::Operand& o, const abi::Operand& head) {
    i64 apart = place(o) - place(head);
#pragma unroll 1
    for (int d = 0; d + 1 < P::kDims; ++d)
      if (r.size[d] > 1) apart |= o.stride[d] - head.stride[d];
    return o.stride[P::kDims - 1] == 1 && (apart & (V - 1)) == 0;
  }
};

}  // namespace ark::device
