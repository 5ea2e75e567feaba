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

  i64 begin, end;               // elements of the item
  i32 row, each;                // elements and slots of a row
  i64 first;                    // slot of the item's first row
  i32 count = 0;                // slots of its rows
  i32 size[P::kDims];           // of the domain
  i32 place, stride[P::kDims];  // of the head, in elements, modulo 2^32

  ARK_DEVICE RowSlots(const Context& c, int head, i64 item_begin, i64 item_end) : begin(item_begin), end(item_end) {
    const abi::OpRecord& r = *c.task.record;
    const abi::Operand& o = c.operand(head);
    place = static_cast<i32>(o.offset / element_bytes(o.dtype));
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) {
      size[d] = static_cast<i32>(r.size[d]);
      stride[d] = static_cast<i32>(o.stride[d]);
    }
    row = size[kLast];
    each = (row + 2 * V - 2) / V;
    const i64 first_row = begin / row;
    first = first_row * each;
    if (end > begin) count = (static_cast<i32>((end - 1) / row - first_row) + 1) * each;
  }

  /// x: the coordinates of a row, behind them a slot of it, which becomes the slot's first element; that may lie before
  /// the row.
  ARK_DEVICE SlotPart part(i32 (&x)[P::kDims]) const {
    i64 number = 0;
    u32 at = static_cast<u32>(place);
#pragma unroll
    for (int d = 0; d < kLast; ++d) {
      number = number * size[d] + x[d];
      at += static_cast<u32>(x[d]) * static_cast<u32>(stride[d]);
    }
    x[kLast] = x[kLast] * V - static_cast<i32>(at & (V - 1));
    const i64 start = number * row + x[kLast];
    const i32 low = max(0, -x[kLast]), high = min(V, row - x[kLast]);
    return {static_cast<i32>(max(static_cast<i64>(low), begin - start)),
            static_cast<i32>(min(static_cast<i64>(high), end - start))};
  }
};

}  // namespace ark::device
