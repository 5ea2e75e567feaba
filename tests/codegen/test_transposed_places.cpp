// Pointwise items with transposed operands (csrc/device/program/transposed_places.cuh), compiled for the host: whole
// items are walked tile by tile. Every element is met once, and its value lies where it is read from.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "support/places_on_host.h"
// behind it, since the device headers need what it defines
#include "device/program/transposed_places.cuh"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::device;
using ark::test::expect;
using ark::test::FakeContext;
using ark::test::finish;

namespace {

template <int kRank, int kBytes, bool kFree>
struct FakeProgram {
  static constexpr int kDims = kRank, kNumOperands = 2, kTransposedBytes = kBytes;
  static constexpr int kLongestVector = kBytes <= 2 ? 8 : 16 / kBytes;
  static constexpr int kShift = kBytes == 8 ? 3 : kBytes / 2;
  static constexpr u64 kOperandShifts = kShift * 5;  // of both operands
  static constexpr bool kFreeRows = kFree;
};

/// Operand 0 is transposed and lies in `memory` from byte `offset` on, operand 1 is written: rows of `pitch`.
struct Case {
  std::vector<i64> sizes, strides;
  i64 offset = 0, pitch = 0, phase = 0, rows_each = 1, first = 0, count = 1;
};

/// One item of the case.
template <class P, int V>
class Item {
  static constexpr int kSize = P::kTransposedBytes, kLast = P::kDims - 1;
  static constexpr int kRows = abi::transposed_rows(kSize), kColumns = abi::kTransposedColumns;
  using Places = TransposedPlaces<P, V, FakeContext>;

 public:
  explicit Item(const Case& c) : c_(c), context_{{&record_}, std::vector<abi::Operand>(2)} {
    test::lay_out_copy(c, kSize, V, kBase, record_, context_, memory_);
    for (const i64 size : c.sizes) total_ *= size;
    record_.params.program.tile = c.rows_each * c.sizes.back();
    memory_.resize(memory_.size() + 32);
  }

  /// Elements that went by vectors.
  i64 run() {
    const i64 tile = record_.params.program.tile, row = c_.sizes.back();
    begin_ = c_.first * tile;
    end_ = std::min(total_, (c_.first + c_.count) * tile);
    const PointwisePlaces<P, V, FakeContext> all(context_, begin_, end_, total_);
    const i32 columns = all.by_rows ? kColumns + abi::kTransposedReach : kColumns;
    seen_.assign(static_cast<size_t>(total_), 0);
    abi::TransposedWalk walk{begin_ / row, end_ / row, static_cast<i32>(c_.sizes[kLast - 1]), static_cast<i32>(row),
                             kRows};
    for (; !walk.done(); walk.next()) {
      i32 x[P::kDims] = {};
      unflatten<0, P::kDims - 1>(record_, walk.row, x);
      x[kLast] = walk.column;
      stage(x, walk.count(), std::min(columns, static_cast<i32>(row) - walk.column), columns);
      visit(Places{all, x[kLast - 1], walk.count(), walk.column, static_cast<i32>(row)}, x);
    }
    for (i64 e = 0; e < total_; ++e) fine_ &= seen_[static_cast<size_t>(e)] == (e >= begin_ && e < end_);
    return fine_ ? in_vectors_ : -1;
  }

 private:
  static constexpr i64 kBase = 4096;  // address of memory_[0]

  void stage(const i32 (&x)[P::kDims], i32 rows, i32 columns, i32 room) {
    const size_t bytes = static_cast<size_t>(abi::transposed_bytes(room, kRows, kSize));
    tile_.assign(bytes, 0xee);
    std::vector<char> written(bytes, 0);
    i64 address = context_.operand(0).offset;
    for (int d = 0; d < P::kDims; ++d) address += x[d] * c_.strides[d] * kSize;
    const TransposedPieces<kSize, kRows> pieces(address, c_.strides[kLast] * kSize, rows);
    for (int n = 0; n < columns * pieces.kOfColumn; ++n) {
      const auto piece = pieces.at(n);
      if (!piece.is_there) continue;
      const i64 from = piece.from - kBase;
      fine_ &= piece.from % 16 == 0 && piece.to % 16 == 0 && from >= 0 &&
               from + 16 <= static_cast<i64>(memory_.size()) && piece.to + 16 <= static_cast<i64>(bytes);
      if (!fine_) return;
      fine_ &= written[static_cast<size_t>(piece.to)]++ == 0;
      std::memcpy(&tile_[static_cast<size_t>(piece.to)], &memory_[static_cast<size_t>(from)], 16);
    }
  }

  void visit(const Places& places, const i32 (&first)[P::kDims]) {
    const auto all = [&](int count, int length, auto at) {
      for (int n = 0; n < count; ++n) {
        i32 x[P::kDims];
        std::copy(first, first + P::kDims, x);
        if (at(n, x)) meet(x, length, first);
      }
    };
    if (!places.in_vectors())
      return all(Places::kElements, 1, [&](int n, i32(&x)[P::kDims]) { return places.element_at(n, x); });
    all(Places::kVectors, V, [&](int n, i32(&x)[P::kDims]) { return places.vector_at(n, x); });
    if (places.has_ends()) all(Places::kEnds, 1, [&](int n, i32(&x)[P::kDims]) { return places.end_at(n, x); });
  }

  void meet(const i32 (&x)[P::kDims], int length, const i32 (&first)[P::kDims]) {
    i64 e = 0, address = context_.operand(0).offset - kBase, written = context_.operand(1).offset;
    for (int d = 0; d < P::kDims; ++d) {
      e = e * c_.sizes[d] + x[d];
      address += x[d] * c_.strides[d] * kSize;
      written += x[d] * context_.operand(1).stride[d] * kSize;
    }
    fine_ &= x[kLast] >= 0 && x[kLast] + length <= c_.sizes[kLast];
    fine_ &= length == 1 || written % (std::min(length, 16 / kSize) * kSize) == 0;
    const TransposedElements<kSize, kRows> elements(context_.operand(0), x, first[kLast - 1], first[kLast]);
    for (int i = 0; fine_ && i < length; ++i) {
      ++seen_[static_cast<size_t>(e + i)];
      const i64 place = elements.place(i);
      fine_ &= place >= 0 && place + kSize <= static_cast<i64>(tile_.size()) && place % kSize == 0;
      if (fine_)
        fine_ &= std::memcmp(&tile_[static_cast<size_t>(place)],
                             &memory_[static_cast<size_t>(address + i * c_.strides[kLast] * kSize)], kSize) == 0;
    }
    in_vectors_ += length > 1 ? length : 0;
  }

  const Case& c_;
  abi::OpRecord record_{};
  FakeContext context_;
  std::vector<unsigned char> memory_, tile_;
  std::vector<int> seen_;
  i64 total_ = 1, begin_ = 0, end_ = 0, in_vectors_ = 0;
  bool fine_ = true;
};

template <class P, int V>
i64 check(const Case& c) {
  const i64 result = Item<P, V>(c).run();
  std::string text = cat(P::kTransposedBytes, " bytes, vectors of ", V, ", rows ", c.rows_each, ", ", c.count, " from ",
                         c.first, ", offset ", c.offset, ", pitch ", c.pitch, ", phase ", c.phase, ", sizes");
  for (size_t d = 0; d < c.sizes.size(); ++d) text += cat(" ", c.sizes[d], " / ", c.strides[d]);
  expect(result >= 0, text);
  return result;
}

void matrices() {
  using Bf16 = FakeProgram<2, 2, true>;
  expect(check<Bf16, 8>({{130, 128}, {1, 136}, 16, 128, 0, 65, 0, 2}) == 130 * 128, "whole vectors");
  expect(check<Bf16, 8>({{130, 128}, {1, 131}, 2, 128, 0, 40, 1, 3}) == 90 * 128, "columns that begin anywhere");
  expect(check<Bf16, 8>({{70, 129}, {1, 70}, 0, 129, 0, 70, 0, 1}) > 70 * 112, "rows that no vector divides");
  expect(check<FakeProgram<2, 2, false>, 8>({{70, 129}, {1, 70}, 0, 129, 0, 70, 0, 1}) == 0, "one by one");
}

template <int kSize, int V>
void random_cases(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto up_to = [&](i64 n) { return static_cast<i64>(random() % static_cast<uint64_t>(n)); };
  for (int i = 0; i < 200; ++i) {
    Case c;
    c.sizes = {1 + up_to(3), 16 + up_to(150), 16 + up_to(200)};
    if (up_to(2) == 0) c.sizes[2] = c.sizes[2] / 8 * 8;
    const i64 column = c.sizes[1] + up_to(20);
    c.strides = {column * c.sizes[2] + up_to(9), 1, column};
    c.offset = kSize * up_to(17);
    const bool whole = c.sizes[2] % V == 0;
    c.pitch = c.sizes[2] + (whole ? 0 : up_to(9));
    c.phase = whole ? 0 : up_to(9);
    const i64 rows = c.sizes[0] * c.sizes[1];
    c.rows_each = 1 + up_to(rows);
    const i64 tiles = (rows + c.rows_each - 1) / c.rows_each;
    c.first = up_to(tiles);
    c.count = 1 + up_to(tiles - c.first);
    check<FakeProgram<3, kSize, true>, V>(c);
    check<FakeProgram<3, kSize, false>, V>(c);
  }
}

}  // namespace

int main() {
  matrices();
  random_cases<1, 8>(1);
  random_cases<2, 8>(2);
  random_cases<4, 4>(3);
  random_cases<8, 2>(4);
  return finish("transposed places");
}
