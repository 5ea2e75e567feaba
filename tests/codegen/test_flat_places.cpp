// Vectors that end in the next row (csrc/device/program/flat_places.cuh), compiled for the host: where they lie, their
// coordinates, where the next row begins.
#include <algorithm>
#include <random>
#include <vector>

#include "support/places_on_host.h"
// behind it, since the device headers need what it defines
#include "device/program/flat_places.cuh"
#include "device/program/pointwise_places.cuh"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::device;
using ark::test::expect;
using ark::test::FakeContext;
using ark::test::finish;

namespace {

constexpr int kOperands = 3;

/// Operands 0 and 1 are flat, 0 the narrower.
template <int kRank>
struct FakeProgram {
  static constexpr int kDims = kRank, kNumOperands = kOperands, kVector = 8, kLongestVector = 8;
  static constexpr bool kFreeRows = true;
  static constexpr u32 kFlatOperands = 3;
  static constexpr int kFlatHead = 0;
  inline static u64 kOperandShifts = 0;  // of the case
};

template <int kDims>
i64 flat_index(const abi::OpRecord& r, const i32 (&x)[kDims]) {
  i64 e = 0;
  for (int d = 0; d < kDims; ++d) e = e * r.size[d] + x[d];
  return e;
}

/// Walks of all threads over [low, high): every vector once, with its coordinates and those of the next row.
template <int kDims>
bool check_walks(const abi::OpRecord& r, i32 low, i32 high, int threads, bool crosses, std::vector<int>& seen) {
  constexpr int V = 8;
  const i64 row = r.size[kDims - 1];
  bool fine = true;
  for (int thread = 0; thread < threads; ++thread) {
    i32 e = low + thread * V;
    if (e >= high) continue;
    FlatWalk<kDims> walk(r, e, threads * V);
    for (; e < high; e += threads * V, walk.advance()) {
      fine &= flat_index(r, walk.x) == e;
      for (int d = 0; d < kDims; ++d) fine &= walk.x[d] >= 0 && walk.x[d] < r.size[d];
      const i64 cut = walk.size[kDims - 1] - walk.x[kDims - 1];
      fine &= cut == row - e % row;
      fine &= cut >= V || crosses;
      if (cut < V) {
        i32 next[kDims];
        walk.next_row(next);
        fine &= flat_index(r, next) == e + cut && next[kDims - 1] == 0;
        for (int d = 0; d < kDims; ++d) fine &= next[d] >= 0 && next[d] < r.size[d];
      }
      for (int i = 0; i < V; ++i) ++seen[static_cast<size_t>(e + i)];
    }
  }
  return fine;
}

template <int kDims>
void check_case(const std::vector<i64>& sizes, i64 tile, i64 first, i64 count, const std::vector<i64>& offsets,
                const std::vector<int>& dtypes, bool expected) {
  using P = FakeProgram<kDims>;
  abi::OpRecord record{};
  std::copy(sizes.begin(), sizes.end(), record.size);
  test::set_divisors(record);
  P::kOperandShifts = test::operand_shifts(dtypes);
  record.params.program.tile = tile;
  FakeContext context{{&record}, {}};
  i64 total = 1;
  for (const i64 size : sizes) total *= size;
  for (size_t i = 0; i < kOperands; ++i) {
    abi::Operand o{};
    o.dtype = static_cast<short>(dtypes[i]);
    o.offset = 1600 + offsets[i] * element_bytes(o.dtype);
    context.operands.push_back(o);
  }
  const i64 begin = first * tile, end = std::min(total, (first + count) * tile);
  const std::string text =
      cat("rows of ", sizes.back(), ", ", total, " elements, [", begin, ", ", end, "), ", offsets[0], " off");
  const FlatRange<P, FakeContext> range(context, begin, end, total);
  expect(range.exists == expected, cat(text, ": exists ", range.exists, ", expected ", expected));
  if (!range.exists) return;
  expect(begin <= range.low && range.low - begin < 8 && range.low <= range.high && end - range.high < 8,
         cat(text, ": [", range.low, ", ", range.high, ")"));
  for (int i = 0; i < 2; ++i) {
    const abi::Operand& o = context.operands[static_cast<size_t>(i)];
    const int bytes = element_bytes(o.dtype);
    expect((o.offset + range.low * bytes) % std::min(8 * bytes, 16) == 0, text + ": not aligned");
  }
  std::vector<int> seen(static_cast<size_t>(total), 0);
  expect(check_walks<kDims>(record, range.low, range.high, 5, range.crosses, seen), text + ": coordinates");
  PointwisePlaces<P, 8, FakeContext> places(context, begin, end, total);
  places.leave_out(range.low, range.high);
  const ElementPlaces<P, 8, FakeContext> elements{places};
  for (i64 n = 0; n < elements.count() + 40; ++n) {
    i32 x[kDims] = {};
    if (elements.at(n, x)) ++seen[static_cast<size_t>(flat_index(record, x))];
  }
  bool fine = true;
  for (i64 e = 0; e < total; ++e) fine &= seen[static_cast<size_t>(e)] == (e >= begin && e < end);
  expect(fine, text + ": every element once");
}

void alignment() {
  const std::vector<int> types = {7, 8, 7};  // bf16, f32
  check_case<2>({10, 49}, 490, 0, 1, {0, 0, 0}, types, true);
  check_case<2>({10, 49}, 490, 0, 1, {3, 3, 0}, types, true);
  check_case<2>({10, 49}, 490, 0, 1, {3, 7, 0}, types, true);             // f32 is aligned at multiples of 4
  check_case<2>({10, 49}, 490, 0, 1, {3, 4, 0}, types, false);            // never aligned at once
  check_case<2>({70, 7}, 490, 0, 1, {0, 0, 0}, types, false);             // more than two rows in a vector
  check_case<2>({1 << 16, 1 << 15}, 490, 0, 1, {0, 0, 0}, types, false);  // places of more than 30 bits
  check_case<2>({10, 48}, 480, 0, 1, {3, 3, 0}, types, true);  // rows of whole vectors, and vectors that begin within
  check_case<2>({1, 9}, 9, 0, 1, {7, 7, 0}, types, true);
}

void random_cases() {
  std::mt19937 random(11);
  const auto up_to = [&](i64 n) { return static_cast<i64>(random() % static_cast<uint64_t>(n)); };
  for (int i = 0; i < 3000; ++i) {
    const std::vector<i64> sizes = {1 + up_to(4), 1 + up_to(5), 1 + up_to(4), 8 + up_to(63)};
    const i64 total = sizes[0] * sizes[1] * sizes[2] * sizes[3];
    const i64 tile = up_to(3) == 0 ? total : 16 + up_to(total);
    const i64 tiles = (total + tile - 1) / tile, first = up_to(tiles), count = 1 + up_to(tiles - first);
    const i64 begin = first * tile, end = std::min(total, (first + count) * tile), phase = up_to(8);
    const bool expected = begin + (16 - phase - begin % 8) % 8 < end;
    check_case<4>(sizes, tile, first, count, {phase, phase + 4 * up_to(2), up_to(8)}, {7, 8, 7}, expected);
    const i64 rows = sizes[0] * sizes[1] * sizes[2];
    check_case<2>({rows, sizes[3]}, tile, first, count, {phase, phase, up_to(8)}, {0, 7, 7}, expected);
  }
}

}  // namespace

int main() {
  alignment();
  random_cases();
  return finish("flat places");
}
