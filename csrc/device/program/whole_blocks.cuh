// Blocks of transposed operands (pointwise_blocks.cuh) where nothing is off alignment and no row ends within a vector:
// twice as many rows, so that twice as much is in flight, and a warp reads whole lines.
#pragma once
#include "device/program/pointwise_row_walk.cuh"
#include "device/program/transposed_blocks.cuh"
#include "device/program/turned_block.cuh"

namespace ark::device {

/// A type of so many bytes.
template <int kSize>
struct ElementOf {
  struct type {
    unsigned char bytes[kSize];
  };
};

/// Loads of pieces. The compiler would otherwise use one before it asks for the next, to save registers.
struct FetchPieces {
  template <int kWords>
  ARK_DEVICE void operator()(u64 address, u32 (&words)[kWords]) const {
    const auto raw = load_global<4 * kWords>(reinterpret_cast<const void*>(address));
#pragma unroll
    for (int w = 0; w < kWords; ++w) words[w] = raw.w[w];
  }
  ARK_DEVICE void all_asked() const { __syncwarp(); }
};

/// Rows of a thread's block; all but the transposed operands move by whole vectors from `place` on.
template <class P, int R>
struct WholeUnit {
  TurnedBlock<P, R> block;
  i32 x[P::kDims];             // the first row
  i64 place[P::kNumOperands];  // its vector's, in elements from the operand's first
  i32 count;                   // rows
};

template <class P, int R>
struct WholeRow : ProgramContext {
  const WholeUnit<P, R>& unit;
  const VectorContext<P>& whole;
  int row;

  ARK_DEVICE WholeRow(const VectorContext<P>& c, const WholeUnit<P, R>& of, int number)
      : ProgramContext(c), unit(of), whole(c), row(number) {}
  template <class S>
  ARK_DEVICE S* at(int number) const {
    return reinterpret_cast<S*>(whole.base[number]) +
           multiply_add_wide(row, whole.stride[number][P::kDims - 2], unit.place[number]);
  }
};
template <int V, class S, int kDims, class P, int R>
ARK_DEVICE void load_operand(const WholeRow<P, R>& c, int number, const i32 (&)[kDims], Vec<S, V>& out) {
  if (P::transposed_size(number) == 0) return load_vector(c.template at<const S>(number), out);
  u32 words[(V * sizeof(S) + 3) / 4];
  c.unit.block.template row_words<sizeof(S)>(number, c.row, words);
  __builtin_memcpy(&out, words, sizeof(out));
}
template <int V, class S, int kDims, class P, int R>
ARK_DEVICE void store_operand(const WholeRow<P, R>& c, int number, const i32 (&)[kDims], const Vec<S, V>& in) {
  store_vector(c.template at<S>(number), in);
}

template <class P>
class WholeBlocks {
 public:
  static constexpr int V = P::kVector, kLast = P::kDims - 1, R = 2 * block_rows<P>();
  /// Such a block fits, and what else a row reads is little: it is asked for when the row is computed.
  static constexpr bool kServes = sizeof(TurnedBlock<P, R>::words) <= 64 * 4 && P::kNumOperands <= 2;

  ARK_DEVICE WholeBlocks(Consumer& consumer, const VectorContext<P>& c, i64 first_row, i64 last_row)
      : consumer_(consumer), context_(c), first_(first_row), last_(last_row), places_(c, first_row, last_row) {}

  /// All transposed operands are `active` and aligned from the first row on, all others move by vectors, and there are
  /// rows enough for a block.
  ARK_DEVICE bool serve(u32 active) const {
    const abi::OpRecord& r = *context_.task.record;
    const i32 rows = static_cast<i32>(r.size[kLast - 1]);
    bool fine = !places_.slots && rows >= R && last_ - first_ >= R && first_row(rows) % R == 0;
    unrolled<P::kNumOperands>([&](auto k) __attribute__((always_inline)) {
      constexpr int kNumber = decltype(k)::value, kSize = P::transposed_size(kNumber);
      if constexpr (kSize == 0) {
        fine = fine && context_.moves_together(kNumber);
      } else {
        u64 steps = context_.base[kNumber];
#pragma unroll
        for (int d = 0; d < P::kDims; ++d)
          if (d != kLast - 1) steps |= static_cast<u64>(context_.stride[kNumber][d]) * kSize;
        fine = fine && (active >> kNumber & 1) != 0 && (steps & ~BlockColumns<kSize, V, R>::kMask) == 0;
      }
    });
    return fine;
  }

  /// The item's first row among those of the last but one dimension.
  ARK_DEVICE i32 first_row(i32 rows) const {
    return static_cast<i32>(first_ - divide_by_size(*context_.task.record, kLast - 1, first_) * rows);
  }

  ARK_DEVICE void run() const {
    const StripWalk strips(*context_.task.record, kLast - 1, first_, last_, places_.strip_rows());
    UnitWalk walk(strips, consumer_.warp(), places_.units, kConsumerWarps);
#pragma unroll 1
    for (; !walk.done(); walk.next()) {
      Unit unit;
      load(walk, unit);
      compute(unit);
    }
  }

 private:
  using Unit = WholeUnit<P, R>;

  ARK_DEVICE void load(const UnitWalk& walk, Unit& unit) const {
    const i32 first = places_.row(consumer_.lane()), column = places_.column(walk.unit, consumer_.lane());
    unflatten<0, kLast - 1>(*context_.task.record, walk.strip.outer, unit.x);
    unit.count = column < places_.size ? min(walk.strip.count() - first, R) : 0;
    unit.x[kLast - 1] = walk.strip.row + (unit.count > 0 ? first : 0);
    unit.x[kLast] = min(column, places_.size - V);
    unrolled<P::kNumOperands>([&](auto k) __attribute__((always_inline)) {
      constexpr int kNumber = decltype(k)::value, kSize = P::transposed_size(kNumber);
      if constexpr (kSize == 0) {
        unit.place[kNumber] = context_.place(kNumber, unit.x);
      } else {
        using S = typename ElementOf<kSize>::type;
        using Columns = BlockColumns<kSize, V, R>;
        const Columns columns{reinterpret_cast<u64>(context_.template at<const S>(kNumber, unit.x)),
                              context_.stride[kNumber][kLast], 0, V, max(unit.count, 1)};
        columns.load_aligned(FetchPieces{}, unit.block.words + TurnedBlock<P, R>::place(kNumber));
      }
    });
  }

  ARK_DEVICE void compute(const Unit& unit) const {
    unrolled<R>([&](auto k) __attribute__((always_inline)) {
      if (k.value >= unit.count) return;
      i32 x[P::kDims];
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) x[d] = unit.x[d];
      x[kLast - 1] += k.value;
      const WholeRow<P, R> row(context_, unit, k.value);
      typename P::template Inputs<V> in;
      P::template load<V>(row, x, in);
      P::template run_loaded<V>(row, x, in, NoRoots{});
    });
  }

  Consumer& consumer_;
  const VectorContext<P>& context_;
  const i64 first_, last_;  // rows
  const BlockPlaces<P, R, ProgramContext> places_;
};

}  // namespace ark::device
