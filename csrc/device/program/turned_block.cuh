// A thread's block of transposed operands: which pieces of memory its columns are made of, and its rows as vectors
// (pointwise_blocks.cuh). tests/codegen/test_transposed_blocks.cpp runs it.
#pragma once
#include "device/program/shifted_words.cuh"

namespace ark::device {

/// The words of a thread's block, column by column, operand by operand.
template <class P, int R>
struct TurnedBlock {
  static constexpr int V = P::kVector;
  u32 words[P::kTransposedBytes * V * R / 4];
  u32 active = 0;  // operands that are in it

  static constexpr ARK_DEVICE int place(int number) {
    int bytes = 0;
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i) bytes += i < number ? P::transposed_size(i) : 0;
    return bytes * V * R / 4;
  }
  ARK_DEVICE bool has(int number) const { return P::transposed_size(number) != 0 && (active >> number & 1) != 0; }

  /// Words of row `row`, of elements of kSize bytes.
  template <int kSize, int kWords>
  ARK_DEVICE void row_words(int number, int row, u32 (&out)[kWords]) const {
    constexpr int kColumn = R * kSize / 4;
    const int first = place(number) + row * kSize / 4;
    if constexpr (kSize >= 4) {
#pragma unroll
      for (int i = 0; i < kWords; ++i) out[i] = words[first + i * 4 / kSize * kColumn + i % (kSize / 4)];
    } else if constexpr (kSize == 2) {
      const u32 halves = row % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        out[i] = __byte_perm(words[first + 2 * i * kColumn], words[first + (2 * i + 1) * kColumn], halves);
    } else {
      const u32 bytes = row % 4 | (row % 4 + 4) << 4;
      u32 two[V / 2];
#pragma unroll
      for (int i = 0; i < V / 2; ++i)
        two[i] = __byte_perm(words[first + 2 * i * kColumn], words[first + (2 * i + 1) * kColumn], bytes);
#pragma unroll
      for (int i = 0; i < kWords; ++i) out[i] = V == 2 ? two[0] : __byte_perm(two[2 * i], two[2 * i + 1], 0x5410);
    }
  }
};

/// The columns of a block of one operand, elements of kSize bytes.
template <int kSize, int V, int R>
struct BlockColumns {
  static constexpr int kPiece = R * kSize < 16 ? R * kSize : 16, kPieces = R * kSize / kPiece;
  static constexpr int kPieceWords = kPiece / 4, kWords = R * kSize / 4;
  static constexpr u64 kMask = ~static_cast<u64>(kPiece - 1);

  u64 first;         // address of the block's first row in column 0 of the domain
  i32 stride;        // from column to column
  i32 column, size;  // the first column; those that there are
  i32 rows;          // that there are, at least one

  ARK_DEVICE bool is_aligned() const { return ((first | static_cast<u64>(stride) * kSize) & ~kMask) == 0; }
  /// Column i of the block, or the nearest that there is.
  ARK_DEVICE u64 address(int i) const {
    return first + multiply_add_wide(max(0, min(column + i, size - 1)), stride, 0) * kSize;
  }
  /// Address of a piece of the column, or of the last that has a row.
  ARK_DEVICE u64 piece(u64 column_address, int number) const {
    if (number == 0) return column_address & kMask;
    const u64 last = (column_address + (rows - 1) * kSize) & kMask;
    return min((column_address & kMask) + number * kPiece, last);
  }
  /// `fetch(address, words)`: kPieceWords words from there; `fetch.all_asked()` comes before one of them is used.
  template <int kCount, class Fetch>
  ARK_DEVICE void fetch_pieces(const Fetch& fetch, u32 (&words)[V][kCount][kPieceWords]) const {
#pragma unroll
    for (int i = 0; i < V; ++i) {
      const u64 at = address(i);
#pragma unroll
      for (int k = 0; k < kCount; ++k) fetch(piece(at, k), words[i][k]);
    }
  }
  template <class Fetch>
  ARK_DEVICE void load_aligned(const Fetch& fetch, u32* out) const {
    u32 words[V][kPieces][kPieceWords];
    fetch_pieces<kPieces>(fetch, words);
#pragma unroll
    for (int i = 0; i < V * kWords; ++i) out[i] = words[i / kWords][i % kWords / kPieceWords][i % kPieceWords];
  }
  template <class Fetch>
  ARK_DEVICE void load(const Fetch& fetch, u32* out) const {
    if (is_aligned()) return load_aligned(fetch, out);
    u32 words[V][kPieces + 1][kPieceWords];
    fetch_pieces<kPieces + 1>(fetch, words);
    fetch.all_asked();
#pragma unroll
    for (int i = 0; i < V; ++i) {
      u32 column_words[kWords + kPieceWords], shifted[kWords];
#pragma unroll
      for (int w = 0; w < kWords + kPieceWords; ++w) column_words[w] = words[i][w / kPieceWords][w % kPieceWords];
      shift_words<kPieceWords>(column_words, static_cast<u32>(address(i)) & (kPiece - 1), shifted);
#pragma unroll
      for (int w = 0; w < kWords; ++w) out[i * kWords + w] = shifted[w];
    }
  }
};

/// The vector that begins `shift` columns behind a lane's and ends in the next lane's, both of elements of kSize bytes.
template <int kSize, int V, int kWords>
ARK_DEVICE void shift_row(u32 shift, const u32 (&next)[kWords], u32 (&own)[kWords]) {
  u32 both[2 * kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) both[i] = own[i], both[kWords + i] = next[i];
  if constexpr (V * kSize < 4)
    own[0] = ((own[0] & 0xffff) | next[0] << 16) >> 8 * shift;
  else
    shift_words<kWords>(both, shift * kSize, own);
}

}  // namespace ark::device
