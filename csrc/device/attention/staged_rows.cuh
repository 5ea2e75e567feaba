// Rows of a head (queries, keys or values) on their way into shared memory, by the consumers themselves: 16 bytes at a
// time and in the background where rows can be read so, else element by element. What does not exist becomes zeros.
#pragma once
#include "device/loop/loop.cuh"
#include "device/loop/outline.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// Rows and columns of one head that exist; element (row, column) lies `origin` + row * stride[2] + column * stride[3]
/// elements behind the operand's address.
struct HeadRows {
  const abi::Operand& operand;
  i64 origin;
  int rows, columns;
  ARK_DEVICE HeadRows(const abi::Operand& o, int batch, int head, int num_rows, int num_columns)
      : operand(o), origin(batch * o.stride[0] + head * o.stride[1]), rows(num_rows), columns(num_columns) {}
  /// Rows begin at multiples of 16 bytes, columns lie side by side.
  ARK_DEVICE bool in_pieces() const { return operand.vector * element_bytes(operand.dtype) == 16; }
};
/// A block of rows, and where it goes: `count` lines of `pieces` times 16 bytes, `pitch` bytes apart.
struct RowBlock {
  int row, column, count, pieces;
  u32 shared;
  int pitch;
};

/// Part of each thread's current group of copies; the source must be in_pieces(). `threads` share the work.
ARK_DEVICE void copy_rows(const HeadRows& from, const RowBlock& to, int thread, int threads) {
  const int bytes = element_bytes(from.operand.dtype), row_bytes = (from.columns - to.column) * bytes;
  const i64 stride = from.operand.stride[2] * bytes;
  const auto* at = reinterpret_cast<const unsigned char*>(from.operand.offset) +
                   (from.origin + to.row * from.operand.stride[2] + to.column) * bytes;
  int row = thread / to.pieces, piece = thread % to.pieces;
  const int rows_on = threads / to.pieces, pieces_on = threads % to.pieces;
  while (row < to.count) {
    const int there = to.row + row < from.rows ? max(0, min(row_bytes - piece * 16, 16)) : 0;
    copy_async(to.shared + row * to.pitch + piece * 16, there > 0 ? at + row * stride + piece * 16 : at,
               static_cast<u32>(there));
    row += rows_on;
    piece += pieces_on;
    if (piece >= to.pieces) {
      piece -= to.pieces;
      ++row;
    }
  }
}

ARK_DEVICE void shared_store(u32 shared, float x) { shared_store_float(shared, x); }
ARK_DEVICE void shared_store(u32 shared, double x) {
  shared_store_u64(shared, static_cast<u64>(__double_as_longlong(x)));
}

/// Elements of type S as T, any strides; kCount: lines of the block. There is at least one row and one column.
template <class T, class S, int kCount>
ARK_DEVICE void convert_rows(const HeadRows& from, const RowBlock& to, int thread, int threads) {
  constexpr int kColumns = 256 / sizeof(T), kFlight = 4;
  const auto* base = reinterpret_cast<const S*>(from.operand.offset) + from.origin;
  const i64 stride = from.operand.stride[2], column_stride = from.operand.stride[3];
  const bool along_rows = stride == 1 && column_stride != 1;  // neighbours in memory by neighbours
  const int columns = to.pieces * 16 / static_cast<int>(sizeof(T));
#pragma unroll 1
  for (int first = thread; first < kCount * kColumns; first += threads * kFlight) {
    T value[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const int e = first + i * threads;
      const int row = to.row + (along_rows ? e % kCount : e / kColumns),
                column = to.column + (along_rows ? e / kCount : e % kColumns);
      value[i] = static_cast<T>(
          widen(load_element(base + min(row, from.rows - 1) * stride + min(column, from.columns - 1) * column_stride)));
      if (row >= from.rows || column >= from.columns) value[i] = T(0);
    }
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const int e = first + i * threads;
      const int row = along_rows ? e % kCount : e / kColumns, column = along_rows ? e / kCount : e % kColumns;
      if (row < kCount && column < columns)
        shared_store(to.shared + row * to.pitch + column * static_cast<int>(sizeof(T)), value[i]);
    }
  }
}

/// The one or the other, at most 16 pieces a line; T: the type in shared memory. A function of its own: a tile comes by
/// here from several places.
template <class T, int kCount>
__device__ __noinline__ void stage_rows(const abi::Operand* operand, int batch, int head, int rows, int columns,
                                        RowBlock to, int thread, int threads) {
  const HeadRows from(*in_shared(operand), batch, head, rows, columns);
  const int dtype = from.operand.dtype;
  if (dtype == (sizeof(T) == 8 ? kTypeF64 : kTypeF32) && from.in_pieces()) return copy_rows(from, to, thread, threads);
  if constexpr (sizeof(T) == 8)
    convert_rows<T, double, kCount>(from, to, thread, threads);
  else if (dtype == kTypeF32)
    convert_rows<T, float, kCount>(from, to, thread, threads);
  else if (dtype == kTypeF16)
    convert_rows<T, f16, kCount>(from, to, thread, threads);
  else
    convert_rows<T, bf16, kCount>(from, to, thread, threads);
}

}  // namespace ark::device
