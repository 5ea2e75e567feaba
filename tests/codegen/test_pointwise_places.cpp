// Which elements of a pointwise item go by vectors (csrc/device/program/pointwise_places.cuh), compiled for the host:
// every element once, vectors where all that move by vectors are aligned.
#include <algorithm>
#include <random>
#include <vector>

#include "support/places_on_host.h"
// behind it, since the device headers need what it defines
#include "device/program/pointwise_places.cuh"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::device;
using ark::test::expect;
using ark::test::FakeContext;
using ark::test::finish;

namespace {

constexpr int kOperands = 3;

template <int kRank, bool kFree>
struct FakeProgram {
  static constexpr int kDims = kRank, kNumOperands = kOperands, kLongestVector = 8;
  static constexpr bool kFreeRows = kFree;
  inline static u64 kOperandShifts = 0;  // of the case
};

struct Case {
  std::vector<i64> sizes;
  i64 tile = 1, first = 0, count = 1;
  std::vector<i64> offsets, pitches;  // per operand: of the first element, between rows
  std::vector<int> dtypes;
  std::vector<int> vectors;
};

std::string text(const Case& c) {
  std::string s = cat("tile ", c.tile, ", ", c.count, " from ", c.first, ", sizes");
  for (const i64 size : c.sizes) s += cat(" ", size);
  return s;
}

/// Elements that went by vectors, or -1 after a failure.
template <class P, int V>
i64 check_case(const Case& c) {
  abi::OpRecord record{};
  std::copy(c.sizes.begin(), c.sizes.end(), record.size);
  test::set_divisors(record);
  P::kOperandShifts = test::operand_shifts(c.dtypes);
  record.params.program.tile = c.tile;
  FakeContext context{{&record}, {}};
  i64 total = 1;
  for (const i64 size : c.sizes) total *= size;
  for (size_t i = 0; i < kOperands; ++i) {
    abi::Operand o{};
    o.dtype = static_cast<short>(c.dtypes[i]);
    o.vector = static_cast<signed char>(c.vectors[i]);
    const i64 base = 16 * (1000 + 7 * static_cast<i64>(i));  // an address of 16 bytes' alignment
    o.offset = base + c.offsets[i] * element_bytes(o.dtype);
    i64 step = c.pitches[i];
    o.stride[P::kDims - 1] = 1;
    for (int d = P::kDims - 2; d >= 0; --d) o.stride[d] = step, step *= c.sizes[static_cast<size_t>(d)];
    context.operands.push_back(o);
  }
  const i64 begin = c.first * c.tile, end = std::min(total, (c.first + c.count) * c.tile);
  const PointwisePlaces<P, V, FakeContext> places(context, begin, end, total);
  std::vector<int> seen(static_cast<size_t>(total), 0);
  i64 in_vectors = 0;
  bool fine = true;
  const auto note = [&](const i32(&x)[P::kDims], int length) {
    i64 e = 0;
    for (int d = 0; d < P::kDims; ++d) e = e * c.sizes[static_cast<size_t>(d)] + x[d];
    fine &= x[P::kDims - 1] >= 0 && x[P::kDims - 1] + length <= c.sizes[P::kDims - 1];
    if (!fine) return;
    for (int i = 0; i < length; ++i) ++seen[static_cast<size_t>(e + i)];
    for (const abi::Operand& o : context.operands) {
      const int bytes = element_bytes(o.dtype), together = std::min(length, 16 / bytes);
      if (length == 1 || o.vector < together) continue;
      i64 at = o.offset;
      for (int d = 0; d < P::kDims; ++d) at += x[d] * o.stride[d] * bytes;
      fine &= at % (together * bytes) == 0;
    }
  };
  const VectorPlaces<P, V, FakeContext> vectors{places};
  expect(vectors.count() * V <= 3 * (end - begin), "as many places as the item is long: " + text(c));
  // Threads ask for more places than there are, up to a round of all of them.
  for (i64 n = 0; n < vectors.count() + 300 && vectors.count() > 0; ++n) {
    i32 x[P::kDims] = {};
    if (!vectors.at(n, x)) continue;
    note(x, V);
    in_vectors += V;
  }
  const ElementPlaces<P, V, FakeContext> elements{places};
  for (i64 n = 0; n < elements.count() + 300 && elements.count() > 0; ++n) {
    i32 x[P::kDims] = {};
    if (elements.at(n, x)) note(x, 1);
  }
  for (i64 e = 0; e < total; ++e) fine &= seen[static_cast<size_t>(e)] == (e >= begin && e < end);
  expect(fine, text(c));
  return fine ? in_vectors : -1;
}

void one_dimension() {
  using P = FakeProgram<1, false>;
  const auto flat = [](i64 size, i64 tile, i64 first, i64 count) {
    return Case{{size}, tile, first, count, {0, 8, 16}, {1, 1, 1}, {7, 7, 8}, {8, 8, 4}};
  };
  expect(check_case<P, 8>(flat(4095, 1024, 0, 4)) == 4088, "all but the last seven");
  expect(check_case<P, 8>(flat(4095, 1024, 3, 1)) == 1016, "the last tile");
  expect(check_case<P, 8>(flat(4095, 4095, 0, 1)) == 4088, "one tile");
  expect(check_case<P, 8>(flat(5, 5, 0, 1)) == 0, "less than a vector");
  expect(check_case<P, 8>(flat(4096, 1023, 1, 2)) == 0, "tiles that begin anywhere");
}

void rows() {
  using P = FakeProgram<2, true>;
  const Case contiguous{{33, 101}, 3 * 101, 2, 4, {0, 16, 1}, {101, 101, 7}, {7, 8, 7}, {8, 4, 1}};
  expect(check_case<P, 8>(contiguous) > 12 * 80, "rows of 101");
  Case padded{{33, 101}, 3 * 101, 2, 4, {3, 3, 0}, {104, 104, 0}, {7, 7, 7}, {8, 8, 1}};
  expect(check_case<P, 8>(padded) == 12 * 96, "rows of 104, three elements from alignment");
  padded.tile = 250;
  expect(check_case<P, 8>(padded) > 600, "tiles that begin within rows");
  const Case part_of_a_row{{2, 50257}, 512, 40, 1, {0, 0, 0}, {50257, 50257, 0}, {7, 7, 7}, {8, 8, 1}};
  expect(check_case<P, 8>(part_of_a_row) >= 504, "tiles within a long row");
  Case short_rows{{40, 9}, 90, 0, 4, {0, 0, 0}, {9, 9, 9}, {7, 7, 7}, {8, 8, 8}};
  expect(check_case<P, 8>(short_rows) == 0, "short rows go one by one");
  Case even{{33, 104}, 3 * 104, 0, 11, {0, 0, 0}, {104, 112, 0}, {7, 7, 7}, {8, 8, 1}};
  expect(check_case<P, 8>(even) == 33 * 104, "rows of whole vectors");
  const Case slice{{33, 104}, 3 * 104, 0, 11, {1, 0, 0}, {1537, 104, 0}, {7, 7, 7}, {8, 1, 1}};
  const i64 in_slice = check_case<P, 8>(slice);
  expect(in_slice >= 33 * 96 && in_slice < 33 * 104, "rows of whole vectors in longer ones of 1537");
  Case counting{{33, 101}, 303, 0, 4, {0, 0, 0}, {101, 101, 101}, {7, 7, 7}, {8, 8, 8}};
  expect(check_case<FakeProgram<2, false>, 8>(counting) == 0, "programs that count along the row");
}

/// Operands aligned alike, at random sizes, tiles and places.
void random_cases() {
  std::mt19937 random(7);
  const auto up_to = [&](i64 n) { return static_cast<i64>(random() % static_cast<uint64_t>(n)); };
  for (int i = 0; i < 3000; ++i) {
    Case c;
    c.sizes = {1 + up_to(4), 1 + up_to(7), 1 + up_to(150)};
    const i64 total = c.sizes[0] * c.sizes[1] * c.sizes[2];
    c.tile = up_to(3) == 0 ? total : 1 + up_to(total);
    const i64 tiles = (total + c.tile - 1) / c.tile;
    c.first = up_to(tiles);
    c.count = 1 + up_to(tiles - c.first);
    const bool whole = c.sizes[2] % 8 == 0 && up_to(2) == 0;
    const i64 phase = whole ? 0 : up_to(8), pitch = c.sizes[2] + (whole ? 0 : up_to(8));
    for (int k = 0; k < kOperands; ++k) {
      const bool alike = k < 2;
      c.offsets.push_back(alike ? phase + 8 * up_to(3) : up_to(9));
      c.pitches.push_back(alike ? pitch + 8 * up_to(2) : c.sizes[2] + up_to(9));
      c.dtypes.push_back(k == 1 ? 8 : 7);
      c.vectors.push_back(alike ? (k == 1 ? 4 : 8) : 1);
    }
    check_case<FakeProgram<3, true>, 8>(c);
    check_case<FakeProgram<3, true>, 2>(c);
  }
}

}  // namespace

int main() {
  one_dimension();
  rows();
  random_cases();
  return finish("pointwise places");
}
