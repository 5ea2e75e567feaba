// Where the vectors of a pointwise item lie whose results are contiguous over the whole domain (pointwise_flat.cuh).
#pragma once
#include "device/program/domain.cuh"
#include "device/program/operand_sizes.cuh"

namespace ark::device {

/// Coordinates of a thread's vectors: each lies a constant number of elements behind the one before, so that no
/// division is needed.
template <int kDims>
struct FlatWalk {
  i32 size[kDims], step[kDims], x[kDims];

  FlatWalk() = default;
  ARK_DEVICE FlatWalk(const abi::OpRecord& r, i64 first, i32 distance) {
#pragma unroll
    for (int d = 0; d < kDims; ++d) size[d] = static_cast<i32>(r.size[d]);
    unflatten<0, kDims>(r, first, x);
    unflatten_near<0, kDims>(r, static_cast<u32>(distance), step);
  }
  /// All places are below 2^31.
  ARK_DEVICE static FlatWalk near(const abi::OpRecord& r, u32 first, i32 distance) {
    FlatWalk walk;
#pragma unroll
    for (int d = 0; d < kDims; ++d) walk.size[d] = static_cast<i32>(r.size[d]);
    unflatten_near<0, kDims>(r, first, walk.x);
    unflatten_near<0, kDims>(r, static_cast<u32>(distance), walk.step);
    return walk;
  }
  /// The last dimension has `last` places instead.
  ARK_DEVICE FlatWalk(const abi::OpRecord& r, i64 first, i32 distance, i32 last) {
#pragma unroll
    for (int d = 0; d + 1 < kDims; ++d) size[d] = static_cast<i32>(r.size[d]);
    size[kDims - 1] = last;
    start(r, first, x);
    start(r, distance, step);
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
  ARK_DEVICE void start(const abi::OpRecord& r, i64 place, i32 (&at)[kDims]) const {
    if constexpr (kDims == 1) {
      at[0] = static_cast<i32>(place);
      return;
    }
    const u32 last = static_cast<u32>(size[kDims - 1]);
    const i64 rows = place >> 31 == 0 ? static_cast<u32>(place) / last : place / last;
    at[kDims - 1] = static_cast<i32>(place - rows * last);
    unflatten<0, kDims - 1>(r, rows, at);
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

/// Elements [low, high) of an item lie in vectors where all flat operands are aligned.
template <class P, class Context>
struct FlatRange {
  i32 low = 0, high = 0;
  bool exists = false;
  bool crosses = false;  // some vector ends in the next row

  ARK_DEVICE FlatRange(const Context& c, i64 begin, i64 end, i64 total) {
    constexpr int V = P::kVector;
    constexpr i64 kMost = 1ll << 30;  // so that no place behind the last vector needs more than 32 bits
    if (total > kMost) return;
    const i32 row = static_cast<i32>(c.task.record->size[P::kDims - 1]);
    // of addresses the lowest bits count
    const u32 place = static_cast<u32>(c.operand(P::kFlatHead).offset) >> operand_shift<P>(P::kFlatHead);
    low = static_cast<i32>(begin) + static_cast<i32>((0u - place - static_cast<u32>(begin)) & (V - 1));
    bool aligned = row >= V;
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i) {
      if ((P::kFlatOperands >> i & 1) == 0) continue;
      const int shift = operand_shift<P>(i), bytes = V << shift;
      const u32 at = static_cast<u32>(c.operand(i).offset) + (static_cast<u32>(low) << shift);
      aligned = aligned && (at & static_cast<u32>((bytes < 16 ? bytes : 16) - 1)) == 0;
    }
    high = low + (static_cast<i32>(end) - low) / V * V;
    exists = aligned && low < end;
    crosses = ((row | low) & (V - 1)) != 0;
  }
};

}  // namespace ark::device
