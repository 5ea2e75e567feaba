// Tiles of a pointwise task through which operands go whose contiguous dimension is not the domain's last: where their
// elements lie in shared memory (device/program/pointwise_transposed.cuh). Shared with planner and codegen.
//
// A row is a place of the last but one dimension, along which these operands are contiguous, a column one of the last.
// Of each column a tile holds the 16-byte pieces of memory that its rows lie in, so that any stride and address will
// do.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

inline constexpr int kTransposedColumns = 64;
/// Columns behind the last whose elements a vector that begins in the tile may want.
inline constexpr int kTransposedReach = 8;
/// Rows and columns below which tiles are not worth it.
inline constexpr int kLeastTransposed = 16;
/// Operands that go through tiles, and bytes of one element of each of them together.
inline constexpr int kMostTransposed = 3, kMostTransposedBytes = 16;

/// Rows of a tile, where the operands' elements have so many bytes together.
ARK_ABI_BOTH constexpr int transposed_rows(int bytes) {
  return bytes <= 1 ? 128 : bytes <= 2 ? 64 : bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;
}
/// 16-byte pieces that `rows` elements can lie in.
ARK_ABI_BOTH constexpr int transposed_pieces(int rows, int size) { return (rows * size + 15) / 16 + 1; }
/// Where a column's pieces begin. 16 bytes more every 8 columns: eight lanes that read every eighth, fourth or second
/// column of a row meet different banks.
ARK_ABI_BOTH constexpr int transposed_place(int column, int rows, int size) {
  return column * transposed_pieces(rows, size) * 16 + column / 8 * 16;
}
/// Bytes of a tile of so many columns, a multiple of 8.
ARK_ABI_BOTH constexpr int transposed_bytes(int columns, int rows, int size) {
  return transposed_place(columns, rows, size);
}

/// The tiles of rows [row, end) of the flattened outer dimensions, in order. No tile has rows of two places of the
/// dimensions before the last but one; tiles begin at multiples of `most` of it, or at the first row.
struct TransposedWalk {
  i64 row, end;
  i32 rows, columns, most;  // sizes of the last but one and the last dimension; rows of a tile
  i32 column = 0;

  ARK_ABI_BOTH bool done() const { return row >= end; }
  ARK_ABI_BOTH i32 count() const {
    const i32 within = static_cast<i32>(row % rows), whole = most - within % most, left = rows - within;
    const i32 some = whole < left ? whole : left;
    return end - row < some ? static_cast<i32>(end - row) : some;
  }
  ARK_ABI_BOTH void next() {
    column += kTransposedColumns;
    if (column < columns) return;
    row += count();
    column = 0;
  }
};

}  // namespace ark::abi
