// Pointwise items some of whose operands are contiguous along the last but one dimension: each thread loads a block of
// these, a few 16-byte pieces of every column, turns it in registers, and computes rows of vectors. No shared memory and
// no barrier; all pieces of a block are in flight at once. What is off alignment is shifted: columns as they come, rows
// with the help of the next lane's block (transposed_blocks.cuh).
#pragma once
#include "device/program/pointwise_row_walk.cuh"
#include "device/program/transposed_blocks.cuh"

namespace ark::device {

/// The words of a thread's block, column by column, operand by operand.
template <class P, int R>
struct TurnedBlock {
  static constexpr int V = P::kVector;
  u32 words[P::kTransposedBytes * V * R / 4];
  u32 active = 0;  // operands that are in it

  static constexpr ARK_DEVICE int place(int number) {
    int bytes = 0;
    for (int i = 0; i < number; ++i) bytes += P::transposed_size(i);
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

/// A type of so many bytes.
template <int kSize>
struct ElementOf {
  struct type {
    unsigned char bytes[kSize];
  };
};

/// Loads what lies in no block.
template <class P, int R>
struct BesideBlock {
  const SlotContext<P> c;
  const TurnedBlock<P, R>& block;
};
template <int V, class S, int kDims, class P, int R>
ARK_DEVICE void load_operand(const BesideBlock<P, R>& b, int number, const i32 (&x)[kDims], Vec<S, V>& out) {
  if (!b.block.has(number)) load_operand<V, S, kDims>(b.c, number, x, out);
}

/// Takes a row of the block, `shift` columns behind its first; all lanes at once if it `slots`.
template <class P, int R>
struct OfBlock {
  const TurnedBlock<P, R>& block;
  int row;
  i32 shift;
  bool slots;
};
/// The vector that begins `shift` columns behind a lane's and ends in the next lane's.
template <int kSize, int V, int kWords>
ARK_DEVICE void shift_row(u32 shift, u32 (&own)[kWords]) {
  u32 both[2 * kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) both[i] = own[i], both[kWords + i] = __shfl_down_sync(~0u, own[i], 1);
  if constexpr (V * kSize < 4)
    own[0] = (own[0] & 0xffff | both[1] << 16) >> 8 * shift;
  else
    shift_words<kWords>(both, shift * kSize, own);
}

template <int V, class S, int kDims, class P, int R>
ARK_DEVICE void load_operand(const OfBlock<P, R>& b, int number, const i32 (&)[kDims], Vec<S, V>& out) {
  if constexpr (V == P::kVector) {
    if (!b.block.has(number)) return;
    u32 words[(V * sizeof(S) + 3) / 4];
    b.block.template row_words<sizeof(S)>(number, b.row, words);
    if (b.slots) shift_row<sizeof(S), V>(b.shift, words);
    __builtin_memcpy(&out, words, sizeof(out));
  }
}

/// The columns of a block of one operand. `first`: its first element in column 0, `step`: bytes from column to column.
template <int kSize, int V, int R>
struct BlockColumns {
  static constexpr int kPiece = R * kSize < 16 ? R * kSize : 16, kPieces = R * kSize / kPiece;
  static constexpr int kPieceWords = kPiece / 4, kWords = R * kSize / 4;
  static constexpr u64 kMask = ~static_cast<u64>(kPiece - 1);

  u64 first;
  i64 step;
  i32 column, size;  // the first column; those that there are
  i32 rows;          // that there are, at least one

  ARK_DEVICE bool is_aligned() const { return ((first | static_cast<u64>(step)) & ~kMask) == 0; }
  /// Column i of the block, or the nearest that there is.
  ARK_DEVICE u64 address(int i) const { return first + max(0, min(column + i, size - 1)) * step; }
  /// Piece `number` of the column, or the last that has a row.
  ARK_DEVICE Raw<kPiece> piece(u64 column_address, int number) const {
    const u64 last = (column_address + (rows - 1) * kSize) & kMask;
    return load_global<kPiece>(reinterpret_cast<const void*>(min((column_address & kMask) + number * kPiece, last)));
  }
  /// All loads come before what is done with them.
  template <int kCount>
  ARK_DEVICE void load_pieces(u32 (&words)[V][kCount * kPieceWords]) const {
    unrolled<V>([&](auto i) __attribute__((always_inline)) {
      const u64 at = address(i.value);
      unrolled<kCount>([&](auto k) __attribute__((always_inline)) {
        const auto raw = piece(at, k.value);
#pragma unroll
        for (int w = 0; w < kPieceWords; ++w) words[i.value][k.value * kPieceWords + w] = raw.w[w];
      });
    });
  }
  ARK_DEVICE void load(u32* out) const {
    if (is_aligned()) {
      u32 words[V][kWords];
      load_pieces<kPieces>(words);
      unrolled<V>([&](auto i) __attribute__((always_inline)) { copy(words[i.value], out + i.value * kWords); });
    } else {
      u32 words[V][kWords + kPieceWords];
      load_pieces<kPieces + 1>(words);
      unrolled<V>([&](auto i) __attribute__((always_inline)) {
        u32 shifted[kWords];
        shift_words<kPieceWords>(words[i.value], static_cast<u32>(address(i.value)) & (kPiece - 1), shifted);
        copy(shifted, out + i.value * kWords);
      });
    }
  }

 private:
  static ARK_DEVICE void copy(const u32 (&from)[kWords], u32* to) {
#pragma unroll
    for (int w = 0; w < kWords; ++w) to[w] = from[w];
  }
};

/// Programs whose blocks leave room in the registers, and whose rows are few enough copies of code.
template <class P>
constexpr ARK_DEVICE bool has_blocks() {
  if constexpr (kWalksRows<P> && P::kTransposedBytes != 0) return P::kUnroll > 2 && block_rows<P>() != 0;
  return false;
}

/// An item of whole rows.
template <class P>
class PointwiseBlocks {
 public:
  static constexpr int V = P::kVector, kLast = P::kDims - 1, R = block_rows<P>();
  /// Rows whose other operands are in flight at once.
  static constexpr int kAtOnce = P::kUnroll >= R ? R : P::kUnroll >= 4 ? 4 : 2;
  using Block = TurnedBlock<P, R>;

  ARK_DEVICE PointwiseBlocks(Consumer& consumer, const ProgramContext& c, u32 active, i64 begin, i64 end)
      : consumer_(consumer),
        context_(c),
        active_(active),
        first_(begin / c.task.record->size[kLast]),
        last_(end / c.task.record->size[kLast]),
        places_(c, first_, last_) {}

  ARK_DEVICE void run() const {
    i32 unit = consumer_.warp();
    const i32 rows = static_cast<i32>(context_.task.record->size[kLast - 1]);
    for (StripWalk strip(first_, last_, rows, places_.strip_rows()); !strip.done(); strip.next()) {
#pragma unroll 1
      for (; unit < places_.units; unit += kConsumerWarps) take(strip, places_.column(unit, consumer_.lane()));
      unit -= places_.units;
    }
  }

 private:
  /// Rows of a lane: the first one's coordinates, and how many there are.
  struct Rows {
    i32 x[P::kDims];
    i32 count;
  };

  ARK_DEVICE void take(const StripWalk& strip, i32 column) const {
    Rows rows;
    const i32 first = places_.row(consumer_.lane());
    unflatten<0, kLast - 1>(*context_.task.record, strip.outer, rows.x);
    rows.count = min(strip.count() - first, R);
    rows.x[kLast - 1] = strip.row + (rows.count > 0 ? first : 0);
    rows.x[kLast] = column;
    Block block;
    block.active = active_;
    unrolled<R / kAtOnce>([&](auto k) __attribute__((always_inline)) { compute<k.value * kAtOnce>(rows, block); });
  }

  template <int kFirst>
  ARK_DEVICE void compute(const Rows& rows, Block& block) const {
    i32 x[kAtOnce][P::kDims], shift[kAtOnce];
    SlotPart part[kAtOnce];
    typename P::template Inputs<V> in[kAtOnce];
    unrolled<kAtOnce>([&](auto k) __attribute__((always_inline)) {
      auto& at = x[k.value];
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) at[d] = rows.x[d];
      at[kLast - 1] += kFirst + k.value;
      shift[k.value] = places_.shift(at);
      at[kLast] += shift[k.value];
      part[k.value] =
          places_.part(at[kLast], kFirst + k.value < rows.count && !places_.only_lends(consumer_.lane()));
      if (part[k.value].low < part[k.value].high)
        P::template load<V>(BesideBlock<P, R>{context_.of(part[k.value]), block}, at, in[k.value]);
    });
    if constexpr (kFirst == 0) load_block(rows, block);
    unrolled<kAtOnce>([&](auto k) __attribute__((always_inline)) {
      P::template load<V>(OfBlock<P, R>{block, kFirst + k.value, shift[k.value], places_.slots}, x[k.value],
                          in[k.value]);
    });
    unrolled<kAtOnce>([&](auto k) __attribute__((always_inline)) {
      if (part[k.value].low < part[k.value].high)
        P::template run_loaded<V>(context_.of(part[k.value]), x[k.value], in[k.value], NoRoots{});
    });
  }

  ARK_DEVICE void load_block(const Rows& rows, Block& block) const {
    unrolled<P::kNumOperands>([&](auto k) __attribute__((always_inline)) {
      constexpr int kNumber = decltype(k)::value, kSize = P::transposed_size(kNumber);
      if constexpr (kSize != 0) {
        if (!block.has(kNumber)) return;
        i32 x[P::kDims];
#pragma unroll
        for (int d = 0; d < P::kDims; ++d) x[d] = d < kLast ? rows.x[d] : 0;
        using S = typename ElementOf<kSize>::type;
        const i64 step = static_cast<i64>(context_.stride[kNumber][kLast]) * kSize;
        const BlockColumns<kSize, V, R> columns{reinterpret_cast<u64>(context_.template at<const S>(kNumber, x)), step,
                                                rows.x[kLast], places_.size, max(rows.count, 1)};
        columns.load(block.words + Block::place(kNumber));
      }
    });
  }

  Consumer& consumer_;
  const SlotContext<P> context_;
  const u32 active_;
  const i64 first_, last_;  // rows
  const BlockPlaces<P, R, ProgramContext> places_;
};

}  // namespace ark::device
