// How the warps of a pointwise item take blocks of rows and columns, where some operands are contiguous along the last
// but one dimension (pointwise_blocks.cuh). A block is a thread's: rows that follow each other, and a vector's columns.
// tests/codegen/test_transposed_blocks.cpp walks whole items.
#pragma once
#include "device/program/pointwise_places.cuh"
#include "device/program/row_slots.cuh"

namespace ark::device {

/// Rows of a block: as many as leave its words in registers; 0: too many of them.
template <class P>
constexpr ARK_DEVICE int block_rows() {
  constexpr int kOfRow = P::kTransposedBytes * P::kVector / 4;
  return kOfRow * 8 <= 64 ? 8 : kOfRow * 4 <= 80 ? 4 : 0;
}

/// Strips of at most `most` rows; none has rows of two places of the dimensions before the last but one.
struct StripWalk {
  i64 outer;      // place of these dimensions
  i32 row, left;  // the strip's first row there; rows of the item from it on
  i32 rows, most;

  /// Of dimension `dim` of the record, which lies before the last.
  ARK_DEVICE StripWalk(const abi::OpRecord& r, int dim, i64 begin, i64 end, i32 longest)
      : rows(static_cast<i32>(r.size[dim])), most(longest) {
    outer = divide_by_size(r, dim, begin);
    row = static_cast<i32>(begin - outer * rows);
    left = static_cast<i32>(end - begin);
  }
  ARK_DEVICE bool done() const { return left <= 0; }
  ARK_DEVICE i32 count() const { return min(most, min(rows - row, left)); }
  ARK_DEVICE void next() {
    const i32 some = count();
    left -= some;
    row += some;
    if (row == rows) row = 0, ++outer;
  }
};

/// What a warp takes of an item, one unit of `units` of a strip after the other, with `step` warps.
struct UnitWalk {
  StripWalk strip;
  i32 unit, units, step;

  ARK_DEVICE UnitWalk(const StripWalk& first, i32 warp, i32 of_strip, i32 warps)
      : strip(first), unit(warp), units(of_strip), step(warps) {
    settle();
  }
  ARK_DEVICE bool done() const { return strip.done(); }
  ARK_DEVICE void next() {
    unit += step;
    settle();
  }

 private:
  ARK_DEVICE void settle() {
    for (; !strip.done() && unit >= units; strip.next()) unit -= units;
  }
};

/// The item's rows [begin, end) of the flattened dimensions before the last. Lanes lie along the columns first. Where
/// the head's rows begin off alignment, a row has slots as in row_slots.cuh: each begins some columns behind the lane's
/// block and ends in that of the next lane, so that the last lane only has a block to lend.
template <class P, int R, class Context>
struct BlockPlaces {
  static constexpr int V = P::kVector, kLast = P::kDims - 1;

  i32 size;                     // of a row
  i32 across = 3;               // 2^across lanes along the columns, fewer of few columns, more of few rows
  i32 units = 0;                // of a strip: what a warp takes at once
  bool slots;                   // rows begin anywhere
  i32 place, stride[P::kDims];  // of the head, in elements, modulo 2^32

  ARK_DEVICE BlockPlaces(const Context& c, i64 begin, i64 end) {
    const abi::OpRecord& r = *c.task.record;
    size = static_cast<i32>(r.size[kLast]);
    const int head = head_operand<P, V>(c);
    slots = size % V != 0 || (head >= 0 && !aligned_rows<P, V>(c, head));
    const i32 vectors = (size + V - 1) / V + slots;
    const i64 rows = min(end - begin, static_cast<i64>(r.size[kLast - 1]));
    while (across > 1 && vectors <= (1 << across) / 2 - slots) --across;
    while (across < 5 && rows <= (R * 16 >> across)) ++across;
    const i32 each = (1 << across) - slots;
    units = (vectors + each - 1) / each;
    place = head < 0 ? 0 : static_cast<i32>(c.operand(head).offset >> element_shift(c.operand(head).dtype));
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) stride[d] = head < 0 ? 0 : static_cast<i32>(c.operand(head).stride[d]);
  }
  ARK_DEVICE i32 strip_rows() const { return R * 32 >> across; }
  /// The first row and column of a lane's block, within the strip and the row. The column may lie outside.
  ARK_DEVICE i32 row(int lane) const { return (lane >> across) * R; }
  ARK_DEVICE i32 column(i32 unit, int lane) const {
    const i32 along = lane & ((1 << across) - 1);
    return (unit * ((1 << across) - slots) + along - slots) * V;
  }
  ARK_DEVICE bool only_lends(int lane) const { return slots && (~lane & ((1 << across) - 1)) == 0; }
  /// Columns from the lane's block to the slot of the row that x lies in.
  ARK_DEVICE i32 shift(const i32 (&x)[P::kDims]) const {
    if (!slots) return 0;
    u32 at = static_cast<u32>(place);
#pragma unroll
    for (int d = 0; d < kLast; ++d) at += static_cast<u32>(x[d]) * static_cast<u32>(stride[d]);
    return static_cast<i32>((0u - at) & (V - 1));
  }
  /// Elements of the vector that begins at a column.
  ARK_DEVICE SlotPart part(i32 at, bool is_there) const { return {max(0, -at), is_there ? min(V, size - at) : -V}; }
};

}  // namespace ark::device
