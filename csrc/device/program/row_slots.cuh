// Pointwise items whose rows begin anywhere between aligned addresses: every row has slots of V elements that lie where
// one operand, the head, is aligned; those at a row's ends are partly empty.
#pragma once
#include "device/program/domain.cuh"

namespace ark::device {

/// Elements [low, high) of a slot are the item's.
struct SlotPart {
  i32 low, high;
};

template <class P, int V, class Context>
struct RowSlots {
  static constexpr int kLast = P::kDims - 1;

  u32 origin;                   // element that the item begins with, modulo 2^32
  i32 length;                   // elements of the item
  i32 row, each;                // elements and slots of a row
  i64 first;                    // slot that its first element may be in
  i32 count = 0;                // slots up to the one that its last element may be in
  i32 size[P::kDims];           // of the domain
  i32 place, stride[P::kDims];  // of the head, in elements, modulo 2^32

  ARK_DEVICE RowSlots(const Context& c, int head, i64 begin, i64 end)
      : origin(static_cast<u32>(begin)), length(static_cast<i32>(end - begin)) {
    const abi::OpRecord& r = *c.task.record;
    const abi::Operand& o = c.operand(head);
    place = static_cast<i32>(o.offset >> element_shift(o.dtype));
    i32 off = place;
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) {
      size[d] = static_cast<i32>(r.size[d]);
      stride[d] = static_cast<i32>(o.stride[d]);
      if (d < kLast && size[d] > 1) off |= stride[d];
    }
    row = size[kLast];
    each = (row + ((off & (V - 1)) == 0 ? V - 1 : 2 * V - 2)) / V;
    // The slot of a column is at least column / V, and at most one behind that.
    const i64 first_row = divide_by_size(r, kLast, begin), last_row = divide_by_size(r, kLast, end - 1);
    first = first_row * each + (begin - first_row * row) / V;
    const i64 last = last_row * each + min((end - 1 - last_row * row + V - 1) / V, static_cast<i64>(each - 1));
    if (end > begin) count = static_cast<i32>(last - first) + 1;
  }

  /// x: the coordinates of a row, behind them a slot of it, which becomes the slot's first element; that may lie before
  /// the row.
  ARK_DEVICE SlotPart part(i32 (&x)[P::kDims]) const {
    u32 number = 0, at = static_cast<u32>(place);
#pragma unroll
    for (int d = 0; d < kLast; ++d) {
      number = number * static_cast<u32>(size[d]) + static_cast<u32>(x[d]);
      at += static_cast<u32>(x[d]) * static_cast<u32>(stride[d]);
    }
    x[kLast] = x[kLast] * V - static_cast<i32>(at & (V - 1));
    // from the item's begin; modulo 2^32, for an item has fewer elements
    const i32 start = static_cast<i32>(number * static_cast<u32>(row) + static_cast<u32>(x[kLast]) - origin);
    return {max(max(0, -x[kLast]), -start), min(min(V, row - x[kLast]), length - start)};
  }
};

}  // namespace ark::device
