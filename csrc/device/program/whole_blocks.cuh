// Blocks of transposed operands (pointwise_blocks.cuh) where nothing is off alignment and no row ends within a vector.
// If nothing else is read they have twice as many rows: twice as much is in flight, and a warp reads whole lines. Else
// what the block's rows read beside them is asked for with the block, and is in flight at the same time.
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

/// Bytes that a vector of the program reads beside the transposed operands.
template <class P>
constexpr ARK_DEVICE int bytes_beside() {
  return static_cast<int>(sizeof(typename P::template Inputs<P::kVector>)) - P::kTransposedBytes * P::kVector;
}

/// Rows of a thread's block; all but the transposed operands move by whole vectors from `place` on. kBeside: what lies
/// beside the block is in `in`.
template <class P, int R, bool kBeside>
struct WholeUnit {
  TurnedBlock<P, R> block;
  typename P::template Inputs<P::kVector> in[kBeside ? R : 1];
  i32 x[P::kDims];             // the first row
  i64 place[P::kNumOperands];  // its vector's, in elements from the operand's first
  i32 count;                   // rows
};

/// What a row's accesses are asked for.
enum class WholePart { kAll, kBeside, kBlock };

template <class P, int R, bool kBeside, WholePart kPart>
struct WholeRow : ProgramContext {
  using Unit = WholeUnit<P, R, kBeside>;
  const Unit& unit;
  const VectorContext<P>& whole;
  int row;

  ARK_DEVICE WholeRow(const VectorContext<P>& c, const Unit& of, int number)
      : ProgramContext(c), unit(of), whole(c), row(number) {}
  template <class S>
  ARK_DEVICE S* at(int number) const {
    return reinterpret_cast<S*>(whole.base[number]) +
           multiply_add_wide(row, whole.stride[number][P::kDims - 2], unit.place[number]);
  }
};
template <int V, class S, int kDims, class P, int R, bool kBeside, WholePart kPart>
ARK_DEVICE void load_operand(const WholeRow<P, R, kBeside, kPart>& c, int number, const i32 (&)[kDims],
                             Vec<S, V>& out) {
  const bool beside = P::transposed_size(number) == 0;
  if (kPart == (beside ? WholePart::kBlock : WholePart::kBeside)) return;
  if (beside) return load_vector(c.template at<const S>(number), out);
  u32 words[(V * sizeof(S) + 3) / 4];
  c.unit.block.template row_words<sizeof(S)>(number, c.row, words);
  __builtin_memcpy(&out, words, sizeof(out));
}
template <int V, class S, int kDims, class P, int R, bool kBeside, WholePart kPart>
ARK_DEVICE void store_operand(const WholeRow<P, R, kBeside, kPart>& c, int number, const i32 (&)[kDims],
                              const Vec<S, V>& in) {
  store_vector(c.template at<S>(number), in);
}

template <class P>
class WholeBlocks {
 public:
  static constexpr bool kBeside = P::kNumOperands > 2;
  static constexpr int V = P::kVector, kLast = P::kDims - 1, R = (kBeside ? 1 : 2) * block_rows<P>();
  /// What a block has in flight fits.
  static constexpr bool kServes = sizeof(TurnedBlock<P, R>::words) + (kBeside ? bytes_beside<P>() * R : 0) <= 64 * 4;

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
  using Unit = WholeUnit<P, R, kBeside>;
  template <WholePart kPart>
  using Row = WholeRow<P, R, kBeside, kPart>;

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
    if constexpr (kBeside) {
      unrolled<R>([&](auto k) __attribute__((always_inline)) {  // rows that are not there: the nearest that is
        P::template load<V>(Row<WholePart::kBeside>(context_, unit, min(k.value, max(unit.count - 1, 0))), unit.x,
                            unit.in[k.value]);
      });
    }
  }

  ARK_DEVICE void compute(Unit& unit) const {
    unrolled<R>([&](auto k) __attribute__((always_inline)) {
      if (k.value >= unit.count) return;
      i32 x[P::kDims];
#pragma unroll
      for (int d = 0; d < P::kDims; ++d) x[d] = unit.x[d];
      x[kLast - 1] += k.value;
      const Row<kBeside ? WholePart::kBlock : WholePart::kAll> row(context_, unit, k.value);
      auto& in = unit.in[kBeside ? k.value : 0];
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
