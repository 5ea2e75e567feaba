// Pointwise items with a transposed operand that begins anywhere (csrc/device/program/window_tiles.cuh), compiled for
// the host: whole items are walked tile by tile, thread by thread. Every element is met once, with the value that lies
// in memory; no piece lies outside of it, and none is copied over another.
#include <algorithm>
#include <cstring>
#include <iostream>
#include <random>
#include <vector>

#include "support/places_on_host.h"
// behind it, since the device headers need what it defines
#include "support/words_on_host.h"
// and that
#include "device/program/window_tiles.cuh"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::device;
using ark::test::expect;
using ark::test::FakeContext;
using ark::test::finish;

namespace {

template <int kRank, int kBytes, int kLength>
using FakeProgram = test::CopyingProgram<kRank, kBytes, kLength>;

/// Operand 0 is transposed and lies in `memory` from byte `offset` on, operand 1 is written: rows of `pitch` elements.
struct Case {
  std::vector<i64> sizes, strides;
  i64 offset = 0, pitch = 0, phase = 0, begin = 0, end = 0;  // rows of the item
};

template <class P>
class Item {
  static constexpr int kSize = P::kTransposedBytes, kLast = P::kDims - 1, V = P::kVector;
  static constexpr i64 kBase = 4096;  // address of memory_[0]
  using Tiles = WindowTiles<kSize, V>;
  using Places = BlockPlaces<P, V, FakeContext>;

 public:
  explicit Item(const Case& c) : c_(c), context_{{&record_}, std::vector<abi::Operand>(2)} {
    test::lay_out_copy(c, kSize, V, kBase, record_, context_, memory_);
    for (const i64 size : c.sizes) total_ *= size;
  }

  /// Elements that went by whole vectors; -1: something is wrong.
  i64 run() {
    seen_.assign(static_cast<size_t>(total_), 0);
    const Places places(context_, c_.begin, c_.end);
    const Tiles tiles(std::min(c_.end - c_.begin, c_.sizes[kLast - 1]), (places.size + V - 1) / V + places.slots);
    fine_ &= tiles.rows % V == 0 && tiles.place((tiles.slots + 1) * V) <= Tiles::kBytes;
    const StripWalk strips(record_, kLast - 1, c_.begin, c_.end, tiles.rows);
    for (WindowWalk walk(strips, tiles.count); !walk.done(); walk.next()) {
      const i64 address = strip_address(walk.strip, nullptr);
      const i32 first = first_column(places, tiles, walk.tile);
      stage(places, tiles, walk.strip, address, first);
      for (i32 thread = 0; thread < Tiles::kThreads; ++thread) compute(places, tiles, walk, address, thread);
      if (!fine_) return -1;
    }
    const i64 size = c_.sizes[kLast];
    for (i64 e = 0; e < total_; ++e)
      fine_ &= seen_[static_cast<size_t>(e)] == (e / size >= c_.begin && e / size < c_.end);
    return fine_ ? in_vectors_ : -1;
  }

 private:
  i32 first_column(const Places& places, const Tiles& tiles, i32 tile) const {
    return (tile * tiles.slots - places.slots) * V;
  }
  i64 strip_address(const StripWalk& strip, i32* coordinates) const {
    i32 x[P::kDims] = {};
    unflatten<0, kLast - 1>(record_, strip.outer, x);
    x[kLast - 1] = strip.row;
    if (coordinates != nullptr) std::copy(x, x + P::kDims, coordinates);
    return place(context_.operand(0), x);
  }
  i64 place(const abi::Operand& o, const i32 (&x)[P::kDims]) const {
    i64 at = o.offset;
    for (int d = 0; d < P::kDims; ++d) at += x[d] * o.stride[d] * kSize;
    return at;
  }

  void stage(const Places& places, const Tiles& tiles, const StripWalk& strip, i64 address, i32 first) {
    tile_.assign(Tiles::kBytes, 0xee);
    std::vector<char> written(Tiles::kBytes, 0);
    const i32 columns = std::min((tiles.slots + places.slots) * V, places.size - first);
    for (i32 thread = 0; thread < Tiles::kThreads; ++thread) {
      const WindowPieces<kSize, V> pieces(tiles, thread);
      for (i32 c = pieces.column; c < columns; c += pieces.step) {
        const i64 column = address + (first + c) * c_.strides[kLast] * kSize;
        if (first + c < 0 || !pieces.is_there(column, strip.count())) continue;
        const i64 from = pieces.from(column) - kBase, to = tiles.place(c) + pieces.piece * 16;
        fine_ &= from >= 0 && from + 16 <= static_cast<i64>(memory_.size()) && from % 16 == 0 && to % 16 == 0;
        fine_ &= to + 16 <= Tiles::kBytes && written[static_cast<size_t>(to)]++ == 0;
        if (!fine_) return;
        std::memcpy(&tile_[static_cast<size_t>(to)], &memory_[static_cast<size_t>(from)], 16);
      }
    }
  }

  void compute(const Places& places, const Tiles& tiles, const WindowWalk& walk, i64 address, i32 thread) {
    WindowRows<kSize, V> rows(tiles, thread);
    const u32 column_bytes = static_cast<u32>(c_.strides[kLast]) * kSize;
    i32 x[P::kDims];
    strip_address(walk.strip, x);
    if (rows.first < walk.strip.count()) x[kLast - 1] += rows.first;
    const i32 shift = places.shift(x);
    rows.settle(tiles, shift,
                static_cast<u32>(address) + static_cast<u32>(first_column(places, tiles, 0)) * column_bytes,
                column_bytes);
    for (i32 row = rows.first, step = 0; row < walk.strip.count(); row += rows.step, step += rows.step) {
      x[kLast] = first_column(places, tiles, walk.tile) + rows.slot * V + shift;
      meet(places, rows, x, step);
      x[kLast - 1] += rows.step;
    }
  }

  void meet(const Places& places, const WindowRows<kSize, V>& rows, const i32 (&x)[P::kDims], i32 step) {
    const SlotPart part = places.part(x[kLast], true);
    fine_ &= places.shift(x) == (x[kLast] % V + V) % V || part.low >= part.high;  // all rows of a class alike
    if (part.low == 0 && part.high == V) {
      fine_ &= place(context_.operand(1), x) % (std::min(V, 16 / kSize) * kSize) == 0;
      in_vectors_ += V;
    }
    for (i32 i = part.low; i < part.high; ++i) {
      i32 at[P::kDims];
      std::copy(x, x + P::kDims, at);
      at[kLast] += i;
      i64 e = 0;
      for (int d = 0; d < P::kDims; ++d) e = e * c_.sizes[d] + at[d];
      ++seen_[static_cast<size_t>(e)];
      const i64 from = place(context_.operand(0), at) - kBase, in = rows.place[i] + step * kSize;
      fine_ &= in >= 0 && in + kSize <= Tiles::kBytes;
      if (!fine_) return;
      fine_ &= std::memcmp(&tile_[static_cast<size_t>(in)], &memory_[static_cast<size_t>(from)], kSize) == 0;
    }
  }

  const Case& c_;
  abi::OpRecord record_{};
  FakeContext context_;
  i64 total_ = 1, in_vectors_ = 0;
  bool fine_ = true;
  std::vector<unsigned char> memory_, tile_;
  std::vector<char> seen_;
};

template <int kSize, int V>
void check(const Case& c, const char* what, i64 vectors_at_least = 0) {
  const i64 found = c.sizes.size() == 2   ? Item<FakeProgram<2, kSize, V>>(c).run()
                    : c.sizes.size() == 3 ? Item<FakeProgram<3, kSize, V>>(c).run()
                                          : Item<FakeProgram<4, kSize, V>>(c).run();
  expect(found >= vectors_at_least, what);
  if (found < vectors_at_least)
    std::cerr << "  sizes " << c.sizes[0] << " x " << c.sizes[1] << ", rows " << c.begin << " to " << c.end << ": "
              << found << "\n";
}

void test_matrices() {
  // rows, columns; the operand's column stride; the result's pitch
  check<2, 8>({{769, 3001}, {1, 769}, 0, 3001, 0, 8, 16}, "eight rows of an odd matrix", 8 * 2984);
  check<2, 8>({{4097, 4095}, {1, 4097}, 0, 4095, 0, 32, 64}, "long odd rows", 32 * 4080);
  check<2, 8>({{64, 256}, {1, 64}, 0, 256, 0, 0, 64}, "all aligned", 64 * 256);
  check<2, 8>({{16, 16}, {1, 17}, 2, 19, 3, 0, 16}, "few of both");
  check<4, 4>({{200, 333}, {1, 201}, 4, 333, 1, 3, 190}, "four bytes");
  check<8, 2>({{100, 77}, {1, 101}, 8, 79, 1, 0, 100}, "eight bytes");
  check<1, 8>({{300, 259}, {1, 301}, 5, 261, 3, 9, 300}, "single bytes");
}

template <int kSize, int V>
void test_random(int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const auto number = [&](i64 low, i64 high) {
    return low + static_cast<i64>(random() % static_cast<u32>(high - low + 1));
  };
  for (int i = 0; i < 60; ++i) {
    const i64 rows = number(16, 150), columns = number(16, 300), outer = number(1, 3);
    const i64 stride = rows + number(0, 9);
    Case c{{rows, columns}, {1, stride}, number(0, 15) * kSize, columns + number(0, 9), number(0, 8)};
    if (i % 3 != 0) {
      c.sizes.insert(c.sizes.begin(), outer);
      c.strides.insert(c.strides.begin(), stride * columns + number(0, 5));
    }
    const i64 all = i % 3 != 0 ? rows * outer : rows;
    c.begin = number(0, all - 1);
    c.end = number(c.begin + 1, all);
    check<kSize, V>(c, "random");
  }
}

}  // namespace

int main() {
  test_matrices();
  for (int seed = 0; seed < 3; ++seed) {
    test_random<1, 8>(seed);
    test_random<2, 8>(seed);
    test_random<2, 4>(seed);
    test_random<2, 2>(seed);
    test_random<1, 2>(seed);
    test_random<4, 4>(seed);
    test_random<4, 8>(seed);
    test_random<8, 2>(seed);
    test_random<8, 8>(seed);
  }
  return finish("window tiles");
}
