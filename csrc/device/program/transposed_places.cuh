// Which pieces of memory make a tile of transposed operands, where their elements lie in it, and which elements of the
// domain the threads take (pointwise_transposed.cuh). tests/codegen/test_transposed_places.cpp runs it.
#pragma once
#include "device/abi/transposed_tile.h"
#include "device/program/pointwise_places.cuh"

namespace ark::device {

/// The 16-byte pieces of an operand's tile. `first`: address of the tile's first element; `step`: bytes from column to
/// column.
template <int kSize, int kRows>
struct TransposedPieces {
  static constexpr int kOfColumn = abi::transposed_pieces(kRows, kSize);
  i64 first, step;
  i32 rows;

  struct Piece {
    i64 from;  // address
    i32 to;    // byte of the tile
    bool is_there;
  };
  ARK_DEVICE TransposedPieces(i64 address, i64 column_bytes, i32 count)
      : first(address), step(column_bytes), rows(count) {}
  ARK_DEVICE Piece at(int n) const {
    const int column = n / kOfColumn, piece = n - column * kOfColumn;
    const i64 begin = first + column * step, from = (begin & ~static_cast<i64>(15)) + piece * 16;
    return {from, abi::transposed_place(column, kRows, kSize) + piece * 16, from < begin + rows * kSize};
  }
};

/// Where elements lie in it that follow each other along the last dimension from coordinates x on. `row`, `column`:
/// coordinates of the tile's first element.
template <int kSize, int kRows>
struct TransposedElements {
  u32 address, step;  // low bits of the address of (tile's first row, column of x); from column to column
  i32 column, byte;   // within the tile

  template <int kDims>
  ARK_DEVICE TransposedElements(const abi::Operand& o, const i32 (&x)[kDims], i32 first_row, i32 first_column) {
    constexpr u32 kBytes = kSize;
    step = static_cast<u32>(o.stride[kDims - 1]) * kBytes;
    address = static_cast<u32>(o.offset) + static_cast<u32>(first_row) * kBytes + static_cast<u32>(x[kDims - 1]) * step;
#pragma unroll
    for (int d = 0; d + 2 < kDims; ++d) address += static_cast<u32>(x[d]) * static_cast<u32>(o.stride[d]) * kBytes;
    column = x[kDims - 1] - first_column;
    byte = (x[kDims - 2] - first_row) * kSize;
  }
  ARK_DEVICE i32 place(int i) const {
    const u32 skew = (address + static_cast<u32>(i) * step) & 15;
    return abi::transposed_place(column + i, kRows, kSize) + byte + static_cast<i32>(skew);
  }
};

/// The elements of a tile: vectors, and the ends of rows in which no vector lies, or all of them one by one.
template <class P, int V, class Context>
struct TransposedPlaces {
  static constexpr int kLast = P::kDims - 1, kRows = abi::transposed_rows(P::kTransposedBytes);
  static constexpr int kColumns = abi::kTransposedColumns;
  static constexpr int kVectors = kRows * kColumns / V, kEnds = kRows * 2 * V, kElements = kRows * kColumns;

  const PointwisePlaces<P, V, Context>& all;
  i32 row, rows, column, size;  // the tile's first row, its rows, its first column; the length of a row

  ARK_DEVICE bool by_rows() const { return P::kFreeRows && all.by_rows; }
  ARK_DEVICE bool in_vectors() const { return by_rows() || all.whole > all.rows.begin; }
  ARK_DEVICE bool has_ends() const { return by_rows() && (column == 0 || column + kColumns + V > size); }

  /// Where a row's vectors begin: by rows, where the operand that counts is aligned.
  ARK_DEVICE i32 vectors_begin(const i32 (&x)[P::kDims]) const {
    if (!by_rows()) return 0;
    const abi::Operand& o = all.rows.c.operand(all.rows.head);
    const int bytes = element_bytes(o.dtype);  // 1, 2, 4 or 8: a shift by 0 to 3
    u32 place = static_cast<u32>(o.offset) >> (bytes == 8 ? 3 : bytes >> 1);
#pragma unroll
    for (int d = 0; d < kLast; ++d) place += static_cast<u32>(x[d]) * static_cast<u32>(o.stride[d]);
    return static_cast<i32>((0u - place) & (V - 1));
  }
  /// Vector n: eight lanes along a row, the others of a warp in the next rows. x holds the outer coordinates.
  ARK_DEVICE bool vector_at(int n, i32 (&x)[P::kDims]) const {
    const int k = (n & 7) + n / (8 * kRows) * 8, r = (n >> 3) & (kRows - 1);
    x[kLast - 1] = row + r;
    x[kLast] = column + vectors_begin(x) + k * V;
    return r < rows && x[kLast] + V <= size;
  }
  ARK_DEVICE bool element_at(int n, i32 (&x)[P::kDims]) const {
    const int r = n / kColumns;
    x[kLast - 1] = row + r;
    x[kLast] = column + n % kColumns;
    return r < rows && x[kLast] < size;
  }
  /// Those of the ends that lie in this tile.
  ARK_DEVICE bool end_at(int n, i32 (&x)[P::kDims]) const {
    const int r = n / (2 * V), k = n % (2 * V);
    x[kLast - 1] = row + r;
    const i32 begin = vectors_begin(x), rest = begin + (size - begin) / V * V;
    x[kLast] = k < V ? k : rest + k - V;
    const i32 within = x[kLast] - column;
    return r < rows && x[kLast] < (k < V ? begin : size) && within >= 0 && within < kColumns;
  }
};

}  // namespace ark::device
