// Which elements of a pointwise item the threads take: vectors where all operands that move by vectors are aligned,
// one by one what is left. Where a vector's length divides the rows, and what moves by vectors is aligned at multiples
// of it, they lie there; else they begin at the places of each row that are aligned.
#pragma once
#include "device/program/domain.cuh"
#include "device/program/operand_sizes.cuh"

namespace ark::device {

/// The rows that elements [begin, end) of the flattened domain lie in.
template <class P, int V, class Context>
struct PointwiseRows {
  const Context& c;
  i64 begin, end;
  i32 row = 1, first = 0, count = 0;  // elements of a row; rows
  i32 each = 0;                       // vectors that a row's part can have
  int head = -1;                      // operand whose alignment counts

  /// Elements [low, high) of a row are the item's, [vectors, rest) of them whole vectors.
  struct Part {
    i32 low, high, vectors, rest;
  };
  ARK_DEVICE void start(int head_operand) {
    head = head_operand;
    row = c.task.record->size[P::kDims - 1];
    const abi::OpRecord& r = *c.task.record;
    first = static_cast<i32>(divide_by_size(r, P::kDims - 1, begin));
    count = end > begin ? static_cast<i32>(divide_by_size(r, P::kDims - 1, end - 1)) - first + 1 : 0;
    each = static_cast<i32>(min(static_cast<i64>(row), end - begin)) / V;
  }
  /// Coordinates of the row's first element go to x.
  ARK_DEVICE Part part(i32 number, i32 (&x)[P::kDims]) const {
    unflatten<0, P::kDims - 1>(*c.task.record, first + number, x);
    x[P::kDims - 1] = 0;
    const i64 start = static_cast<i64>(first + number) * row;
    Part p;
    p.low = static_cast<i32>(max(begin - start, static_cast<i64>(0)));
    p.high = static_cast<i32>(min(end - start, static_cast<i64>(row)));
    const abi::Operand& o = c.operand(head);
    i64 place = (o.offset >> element_shift(o.dtype)) + p.low;
#pragma unroll
    for (int d = 0; d + 1 < P::kDims; ++d) place += static_cast<i64>(x[d]) * static_cast<i32>(o.stride[d]);
    p.vectors = min(p.low + (static_cast<i32>(-place) & (V - 1)), p.high);
    p.rest = p.vectors + (p.high - p.vectors) / V * V;
    return p;
  }
};

/// Operands are asked side by side, many of them one after another.
template <class P>
inline constexpr int kAskedAtOnce = P::kNumOperands > 0 && P::kNumOperands <= 8 ? P::kNumOperands : 1;

/// The narrowest operand that moves by vectors of V: where it is aligned all of them are; -1: none.
template <class P, int V, class Context>
ARK_DEVICE int head_operand(const Context& c) {
  int head = -1, narrowest = 16;
#pragma unroll(kAskedAtOnce<P>)
  for (int i = 0; i < P::kNumOperands; ++i) {
    const abi::Operand& o = c.operand(i);
    const int bytes = 1 << operand_shift<P>(i);
    if (o.slot == abi::kNoSlot || o.stride[P::kDims - 1] != 1 || o.vector < operand_together<P, V>(i)) continue;
    if (bytes < narrowest) head = i, narrowest = bytes;
  }
  return head;
}

/// Is the operand aligned at all multiples of V in every row?
template <class P, int V, class Context>
ARK_DEVICE bool aligned_rows(const Context& c, int operand) {
  const abi::Operand& o = c.operand(operand);
  i64 steps = o.offset >> element_shift(o.dtype);
#pragma unroll
  for (int d = 0; d + 1 < P::kDims; ++d)
    if (c.task.record->size[d] > 1) steps |= o.stride[d];
  return (steps & (V - 1)) == 0;
}

/// Is there an operand that lies along the rows and moves by no vectors of V?
template <class P, int V, class Context>
ARK_DEVICE bool has_shifted(const Context& c) {
  bool shifted = false;
#pragma unroll(kAskedAtOnce<P>)
  for (int i = 0; i < P::kNumOperands; ++i) {
    const abi::Operand& o = c.operand(i);
    shifted =
        shifted || (o.slot != abi::kNoSlot && o.stride[P::kDims - 1] == 1 && o.vector < operand_together<P, V>(i));
  }
  return shifted;
}

/// How an item's elements are divided.
template <class P, int V, class Context>
struct PointwisePlaces {
  PointwiseRows<P, V, Context> rows;
  i64 low, whole;  // elements [low, whole) lie in vectors, those before and behind do not; by rows: neither
  bool by_rows = false;

  /// No vectors yet.
  ARK_DEVICE PointwisePlaces(const Context& c, i64 begin, i64 end) : rows{c, begin, end}, low(begin), whole(begin) {}
  ARK_DEVICE PointwisePlaces(const Context& c, i64 begin, i64 end, i64 total) : PointwisePlaces(c, begin, end) {
    divide(total, false);
  }
  /// `shifts`: what is by rows may have operands that are off alignment in their own way (pointwise_row_walk.cuh).
  ARK_DEVICE void divide(i64 total, bool shifts) {
    const Context& c = rows.c;
    const i64 begin = rows.begin, end = rows.end;
    const abi::OpRecord& r = *c.task.record;
    const i64 row = r.size[P::kDims - 1], tile = r.params.program.tile;
    bool divides = P::kFreeRows ? row % P::kLongestVector == 0 : row == total || row % V == 0;
    int head = -1;
    if constexpr (P::kFreeRows) {
      head = head_operand<P, V>(c);
      divides = divides && (head < 0 || aligned_rows<P, V>(c, head));
      if (shifts) divides = divides && !(row >= 4 * V && head >= 0 && has_shifted<P, V>(c));
    }
    if (divides && (tile % V == 0 || tile >= total)) {
      whole = end - (end - begin) % V;
    } else if constexpr (P::kFreeRows) {
      by_rows = row >= 4 * V && head >= 0;
      if (by_rows && shifts) rows.head = head;
      if (by_rows && !shifts) rows.start(head);
    }
  }
  /// Vectors are somewhere else's matter (pointwise_flat.cuh), and so are the elements [from, to) in them.
  ARK_DEVICE void leave_out(i64 from, i64 to) {
    low = from;
    whole = to;
    by_rows = false;
  }
  /// All elements lie in vectors.
  ARK_DEVICE bool all_in_vectors() const { return low == rows.begin && whole == rows.end; }
};

/// Place n of the vectors.
template <class P, int V, class Context>
struct VectorPlaces {
  const PointwisePlaces<P, V, Context>& all;

  ARK_DEVICE i64 count() const {
    if (P::kFreeRows && all.by_rows) return static_cast<i64>(all.rows.count) * all.rows.each;
    return (all.whole - all.rows.begin) / V;
  }
  ARK_DEVICE bool at(i64 n, i32 (&x)[P::kDims]) const {
    if constexpr (P::kFreeRows) {
      if (all.by_rows) {
        const u32 each = all.rows.each, number = static_cast<u32>(n) / each;
        if (number >= all.rows.count) return false;
        const auto part = all.rows.part(number, x);
        x[P::kDims - 1] = part.vectors + static_cast<i32>(static_cast<u32>(n) - number * each) * V;
        return x[P::kDims - 1] < part.rest;
      }
    }
    const i64 e = all.rows.begin + n * V;
    if (e >= all.whole) return false;
    unflatten<0, P::kDims>(*all.rows.c.task.record, e, x);
    return true;
  }
};

/// Place n of the elements that lie in no vector; by rows: before and after their vectors.
template <class P, int V, class Context>
struct ElementPlaces {
  const PointwisePlaces<P, V, Context>& all;

  ARK_DEVICE i64 count() const {
    if (P::kFreeRows && all.by_rows) return static_cast<i64>(all.rows.count) * (2 * V);
    return all.low - all.rows.begin + all.rows.end - all.whole;
  }
  ARK_DEVICE bool at(i64 n, i32 (&x)[P::kDims]) const {
    if constexpr (P::kFreeRows) {
      if (all.by_rows) {
        const u32 number = static_cast<u32>(n) / (2 * V), k = static_cast<u32>(n) % (2 * V);
        if (number >= all.rows.count) return false;
        const auto part = all.rows.part(number, x);
        x[P::kDims - 1] = k < V ? part.low + k : part.rest + k - V;
        return x[P::kDims - 1] < (k < V ? part.vectors : part.high);
      }
    }
    const i64 before = all.low - all.rows.begin, e = n < before ? all.rows.begin + n : all.whole + (n - before);
    if (e >= all.rows.end) return false;
    unflatten<0, P::kDims>(*all.rows.c.task.record, e, x);
    return true;
  }
};

}  // namespace ark::device
