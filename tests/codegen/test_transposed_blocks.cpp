// Pointwise items with transposed operands that are turned in registers (csrc/device/program/transposed_blocks.cuh,
// turned_block.cuh), compiled for the host: whole items are walked warp by warp, lane by lane. Every element is met
// once, with the value that lies in memory, and no piece lies outside of it.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "support/places_on_host.h"
// behind it, since the device headers need what it defines
#include "support/words_on_host.h"
// and that
#include "device/program/transposed_blocks.cuh"
#include "device/program/turned_block.cuh"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::device;
using ark::test::expect;
using ark::test::FakeContext;
using ark::test::finish;

namespace {

constexpr int kWarps = 8, kLanes = 32;

template <int kRank, int kBytes, int kLength>
using FakeProgram = test::CopyingProgram<kRank, kBytes, kLength>;

/// Operand 0 is transposed and lies in `memory` from byte `offset` on, operand 1 is written: rows of `pitch` elements.
struct Case {
  std::vector<i64> sizes, strides;
  i64 offset = 0, pitch = 0, phase = 0, begin = 0, end = 0;  // rows of the item
  bool moves_together = true;                                // what is written
};

template <class P, int R>
class Item {
  static constexpr int kSize = P::kTransposedBytes, kLast = P::kDims - 1, V = P::kVector;
  static constexpr i64 kBase = 4096;  // address of memory_[0]
  static constexpr int kRowWords = (V * kSize + 3) / 4;
  using Columns = BlockColumns<kSize, V, R>;

 public:
  explicit Item(const Case& c) : c_(c), context_{{&record_}, std::vector<abi::Operand>(2)} {
    test::lay_out_copy(c, kSize, V, kBase, record_, context_, memory_);
    for (const i64 size : c.sizes) total_ *= size;
    if (!c.moves_together) context_.operands[1].vector = 1;
  }

  /// Elements that went by whole vectors; -1: something is wrong.
  i64 run() {
    seen_.assign(static_cast<size_t>(total_), 0);
    const BlockPlaces<P, R, FakeContext> places(context_, c_.begin, c_.end);
    for (i32 warp = 0; warp < kWarps; ++warp) {
      const StripWalk strip(record_, kLast - 1, c_.begin, c_.end, places.strip_rows());
      for (UnitWalk walk(strip, warp, places.units, kWarps); !walk.done(); walk.next())
        take(places, walk.strip, walk.unit);
    }
    const i64 size = c_.sizes[kLast];
    for (i64 e = 0; e < total_; ++e)
      fine_ &= seen_[static_cast<size_t>(e)] == (e / size >= c_.begin && e / size < c_.end);
    return fine_ ? in_vectors_ : -1;
  }

 private:
  void fetch(u64 address, u32 (&words)[Columns::kPieceWords]) {
    const i64 from = static_cast<i64>(address) - kBase;
    fine_ &= from >= 0 && from + Columns::kPiece <= static_cast<i64>(memory_.size()) && from % Columns::kPiece == 0;
    if (fine_) std::memcpy(words, &memory_[static_cast<size_t>(from)], Columns::kPiece);
  }
  struct Fetch {
    Item& item;
    void operator()(u64 address, u32 (&words)[Columns::kPieceWords]) const { item.fetch(address, words); }
    void all_asked() const {}
  };
  i64 place(const abi::Operand& o, const i32 (&x)[P::kDims]) const {
    i64 at = o.offset;
    for (int d = 0; d < P::kDims; ++d) at += x[d] * o.stride[d] * kSize;
    return at;
  }

  void take(const BlockPlaces<P, R, FakeContext>& places, const StripWalk& strip, i32 unit) {
    std::vector<TurnedBlock<P, R>> blocks(kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      i32 x[P::kDims] = {};
      unflatten<0, kLast - 1>(record_, strip.outer, x);
      const i32 count = std::min(strip.count() - places.row(lane), R);
      x[kLast - 1] = strip.row + (count > 0 ? places.row(lane) : 0);
      const Columns columns{static_cast<u64>(place(context_.operand(0), x)), static_cast<i32>(c_.strides[kLast]),
                            places.column(unit, lane), places.size, std::max(count, 1)};
      columns.load(Fetch{*this}, blocks[lane].words);
    }
    for (int lane = 0; fine_ && lane < kLanes; ++lane)
      for (int row = 0; row < R; ++row) meet(places, strip, unit, lane, row, blocks);
  }

  void meet(const BlockPlaces<P, R, FakeContext>& places, const StripWalk& strip, i32 unit, int lane, int row,
            const std::vector<TurnedBlock<P, R>>& blocks) {
    i32 x[P::kDims] = {};
    unflatten<0, kLast - 1>(record_, strip.outer, x);
    x[kLast - 1] = strip.row + places.row(lane) + row;
    const i32 shift = places.shift(x);
    x[kLast] = places.column(unit, lane) + shift;
    const bool is_there = places.row(lane) + row < strip.count() && !places.only_lends(lane);
    const SlotPart part = places.part(x[kLast], is_there);
    if (part.low >= part.high) return;
    u32 words[kRowWords] = {}, next[kRowWords] = {};
    blocks[lane].template row_words<kSize>(0, row, words);
    if (places.slots) {
      blocks[std::min(lane + 1, kLanes - 1)].template row_words<kSize>(0, row, next);
      shift_row<kSize, V>(static_cast<u32>(shift), next, words);
    }
    const bool whole = part.low == 0 && part.high == V;
    if (whole && c_.moves_together) fine_ &= place(context_.operand(1), x) % (std::min(V, 16 / kSize) * kSize) == 0;
    in_vectors_ += whole ? V : 0;
    for (i32 i = part.low; i < part.high; ++i) {
      i32 at[P::kDims];
      std::copy(x, x + P::kDims, at);
      at[kLast] += i;
      fine_ &= at[kLast] >= 0 && at[kLast] < c_.sizes[kLast];
      if (!fine_) return;
      i64 e = 0;
      for (int d = 0; d < P::kDims; ++d) e = e * c_.sizes[d] + at[d];
      ++seen_[static_cast<size_t>(e)];
      const i64 from = place(context_.operand(0), at) - kBase;
      fine_ &= std::memcmp(reinterpret_cast<const unsigned char*>(words) + i * kSize,
                           &memory_[static_cast<size_t>(from)], kSize) == 0;
    }
  }

  const Case& c_;
  abi::OpRecord record_{};
  FakeContext context_;
  std::vector<unsigned char> memory_;
  std::vector<int> seen_;
  i64 total_ = 1, in_vectors_ = 0;
  bool fine_ = true;
};

/// By blocks as they are, and by the larger ones that device/program/whole_blocks.cuh takes.
template <class P>
i64 check(const Case& c) {
  constexpr int R = block_rows<P>();
  const i64 result = std::min(Item<P, R>(c).run(), Item<P, 2 * R>(c).run());
  std::string text = cat(P::kTransposedBytes, " bytes, vectors of ", P::kVector, ", rows ", c.begin, " to ", c.end,
                         ", offset ", c.offset, ", pitch ", c.pitch, ", phase ", c.phase, ", sizes");
  for (size_t d = 0; d < c.sizes.size(); ++d) text += cat(" ", c.sizes[d], " / ", c.strides[d]);
  expect(result >= 0, text);
  return result;
}

void matrices() {
  using Bf16 = FakeProgram<2, 2, 8>;
  expect(check<Bf16>({{130, 128}, {1, 136}, 16, 128, 0, 0, 130}) == 130 * 128, "whole vectors");
  expect(check<Bf16>({{130, 128}, {1, 131}, 2, 128, 0, 40, 130}) == 90 * 128, "columns that begin anywhere");
  expect(check<Bf16>({{70, 129}, {1, 70}, 0, 129, 0, 0, 70}) >= 70 * 112, "rows that no vector divides");
  expect(check<Bf16>({{70, 129}, {1, 71}, 6, 131, 3, 5, 66}) >= 61 * 112, "both");
  expect(check<Bf16>({{7, 200}, {1, 8}, 0, 200, 0, 0, 7}) == 7 * 200, "few rows");
  expect(check<Bf16>({{64, 64}, {1, 0}, 0, 64, 0, 0, 64}) == 64 * 64, "the same column");
}

template <int kSize, int V>
void random_cases(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto up_to = [&](i64 n) { return static_cast<i64>(random() % static_cast<uint64_t>(n)); };
  for (int i = 0; i < 300; ++i) {
    Case c;
    c.sizes = {1 + up_to(3), 16 + up_to(150), 16 + up_to(300)};
    if (up_to(2) == 0) c.sizes[2] = c.sizes[2] / 8 * 8;
    const i64 column = c.sizes[1] + up_to(20);
    c.strides = {column * c.sizes[2] + up_to(9), 1, column};
    c.offset = kSize * up_to(17);
    const bool whole = c.sizes[2] % V == 0 && up_to(4) != 0;
    c.pitch = c.sizes[2] + (whole ? 0 : up_to(9));
    c.phase = whole ? 0 : up_to(9);
    c.moves_together = up_to(5) != 0;
    const i64 rows = c.sizes[0] * c.sizes[1];
    c.begin = up_to(rows);
    c.end = c.begin + 1 + up_to(up_to(2) == 0 ? std::min<i64>(rows - c.begin, 20) : rows - c.begin);
    check<FakeProgram<3, kSize, V>>(c);
  }
}

}  // namespace

int main() {
  matrices();
  random_cases<1, 8>(1);
  random_cases<1, 4>(2);
  random_cases<1, 2>(3);
  random_cases<2, 8>(4);
  random_cases<2, 2>(5);
  random_cases<4, 8>(6);
  random_cases<4, 4>(7);
  random_cases<8, 2>(8);
  random_cases<8, 8>(9);
  return finish("transposed blocks");
}
