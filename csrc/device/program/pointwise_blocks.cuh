// Pointwise items some of whose operands are contiguous along the last but one dimension: each thread loads a block of
// these, a few 16-byte pieces of every column, turns it in registers, and computes rows of vectors. No shared memory
// and no barrier; all pieces of a block are in flight at once. What is off alignment is shifted: columns as they come,
// rows with the help of the next lane's block (transposed_blocks.cuh); where one operand alone is transposed, that goes
// through shared memory instead (pointwise_windows.cuh).
#pragma once
#include "device/program/pointwise_row_walk.cuh"
#include "device/program/pointwise_windows.cuh"
#include "device/program/whole_blocks.cuh"

namespace ark::device {

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
template <int V, class S, int kDims, class P, int R>
ARK_DEVICE void load_operand(const OfBlock<P, R>& b, int number, const i32 (&)[kDims], Vec<S, V>& out) {
  if constexpr (V == P::kVector) {
    if (!b.block.has(number)) return;
    u32 words[(V * sizeof(S) + 3) / 4];
    b.block.template row_words<sizeof(S)>(number, b.row, words);
    if (b.slots) {
      u32 next[(V * sizeof(S) + 3) / 4];
#pragma unroll
      for (int i = 0; i < sizeof(next) / 4; ++i) next[i] = __shfl_down_sync(~0u, words[i], 1);
      shift_row<sizeof(S), V>(b.shift, next, words);
    }
    __builtin_memcpy(&out, words, sizeof(out));
  }
}

/// Programs whose blocks leave room in the registers, and whose rows are few enough copies of code.
template <class P>
constexpr ARK_DEVICE bool has_blocks() {
  if constexpr (kWalksRows<P> && P::kTransposedBytes != 0) {
    int count = 0;
    for (int i = 0; i < P::kNumOperands; ++i) count += P::transposed_size(i) != 0;
    return count <= 2 && P::kUnroll > 2 && block_rows<P>() != 0;
  }
  return false;
}

/// An item of whole rows.
template <class P>
class PointwiseBlocks {
 public:
  static constexpr int V = P::kVector, kLast = P::kDims - 1, R = block_rows<P>();
  /// Rows whose other operands are in flight at once: all where there are none but the block's and the result.
  static constexpr int kAtOnce = P::kNumOperands <= 2 ? R : P::kUnroll >= 4 ? 4 : 2;
  using Block = TurnedBlock<P, R>;

  ARK_DEVICE PointwiseBlocks(Consumer& consumer, const ProgramContext& c, u32 active, i64 begin, i64 end)
      : consumer_(consumer),
        context_(c),
        active_(active),
        first_(divide_by_size(*c.task.record, kLast, begin)),
        last_(divide_by_size(*c.task.record, kLast, end)),
        places_(c, first_, last_) {}

  ARK_DEVICE void run() const {
    if constexpr (WholeBlocks<P>::kServes) {
      const WholeBlocks<P> whole(consumer_, context_, first_, last_);
      if (whole.serve(active_)) return whole.run();
    }
    if constexpr (has_windows<P>())
      PointwiseWindows<P>(consumer_, context_, first_, last_).run();
    else
      run_blocks();
  }

 private:
  ARK_DEVICE void run_blocks() const {
    const StripWalk strips(*context_.task.record, kLast - 1, first_, last_, places_.strip_rows());
    UnitWalk walk(strips, consumer_.warp(), places_.units, kConsumerWarps);
#pragma unroll 1
    for (; !walk.done(); walk.next()) take(walk.strip, places_.column(walk.unit, consumer_.lane()));
  }

  /// Rows of a lane: the first one's coordinates, and how many there are.
  struct Rows {
    i32 x[P::kDims];
    i32 count;   // that the block has
    i32 stored;  // of them, by this lane
  };

  ARK_DEVICE void take(const StripWalk& strip, i32 column) const {
    Rows rows;
    const i32 first = places_.row(consumer_.lane());
    unflatten<0, kLast - 1>(*context_.task.record, strip.outer, rows.x);
    rows.count = min(strip.count() - first, R);
    rows.stored = places_.only_lends(consumer_.lane()) ? 0 : rows.count;
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
      part[k.value] = places_.part(at[kLast], kFirst + k.value < rows.stored);
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
        using Columns = BlockColumns<kSize, V, R>;
        const Columns columns{reinterpret_cast<u64>(context_.template at<const S>(kNumber, x)),
                              context_.stride[kNumber][kLast], rows.x[kLast], places_.size, max(rows.count, 1)};
        columns.load(FetchPieces{}, block.words + Block::place(kNumber));
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
