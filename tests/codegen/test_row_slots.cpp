// Slots of rows that begin between aligned addresses (csrc/device/program/row_slots.cuh), compiled for the host: each
// begins where the head is aligned, and every element of the item is in one of them.
#include <algorithm>
#include <random>
#include <vector>

#include "support/places_on_host.h"
// behind it, since the device headers need what it defines
#include "device/program/flat_places.cuh"
#include "device/program/row_slots.cuh"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::device;
using ark::test::expect;
using ark::test::FakeContext;
using ark::test::finish;

namespace {

constexpr int V = 8, kThreads = 5;

template <int kRank>
struct FakeProgram {
  static constexpr int kDims = kRank;
};

struct Item {
  i64 begin, end;
};

/// Walks of all threads: how often each element of the domain is met; -1: a slot off alignment.
template <int kDims>
std::vector<int> walked(const FakeContext& context, i64 total, Item item) {
  const abi::OpRecord& record = *context.task.record;
  const abi::Operand& head = context.operand(0);
  std::vector<int> seen(static_cast<size_t>(total), 0);
  const RowSlots<FakeProgram<kDims>, V, FakeContext> slots(context, 0, item.begin, item.end);
  for (int thread = 0; thread < kThreads; ++thread) {
    FlatWalk<kDims> walk(record, slots.first + thread, kThreads, slots.each);
    for (i32 n = thread; n < slots.count; n += kThreads, walk.advance()) {
      i32 x[kDims];
      std::copy(walk.x, walk.x + kDims, x);
      const SlotPart part = slots.part(x);
      i64 place = head.offset / 2, e = 0;
      for (int d = 0; d < kDims; ++d) place += x[d] * head.stride[d], e = e * record.size[d] + x[d];
      for (i32 i = std::max(part.low, 0); i < part.high; ++i) {
        if (place % V != 0 || i >= V || e + i < 0 || e + i >= total) return {-1};
        ++seen[static_cast<size_t>(e + i)];
      }
    }
  }
  return seen;
}

template <int kDims>
void check_case(const std::vector<i64>& sizes, i64 pitch, i64 offset, Item item) {
  abi::OpRecord record{};
  abi::Operand head{};
  i64 total = 1, stride = pitch;
  for (int d = kDims; d-- > 0;) {
    record.size[d] = sizes[static_cast<size_t>(d)];
    total *= record.size[d];
    if (d + 1 < kDims) head.stride[d] = stride, stride *= record.size[d];
  }
  test::set_divisors(record);
  head.stride[kDims - 1] = 1;
  head.dtype = 7;  // bf16
  head.offset = 1600 + 2 * offset;
  const FakeContext context{{&record}, {head}};
  const std::vector<int> seen = walked<kDims>(context, total, item);
  bool fine = static_cast<i64>(seen.size()) == total;
  for (i64 e = 0; fine && e < total; ++e) fine = seen[static_cast<size_t>(e)] == (e >= item.begin && e < item.end);
  expect(fine,
         cat("rows of ", sizes.back(), " ", pitch, " apart, ", offset, " off, [", item.begin, ", ", item.end, ")"));
}

void random_cases() {
  std::mt19937 random(13);
  const auto up_to = [&](i64 n) { return static_cast<i64>(random() % static_cast<uint64_t>(n)); };
  for (int i = 0; i < 3000; ++i) {
    const i64 row = 1 + up_to(90), rows = 1 + up_to(20), outer = 1 + up_to(3), begin = up_to(rows * outer * row);
    const Item item{begin, begin + 1 + up_to(rows * outer * row - begin)};
    check_case<2>({rows * outer, row}, row + up_to(12), up_to(16), item);
    check_case<3>({outer, rows, row}, row + up_to(12), up_to(16), item);
  }
}

/// An item within a long row has about as many slots as vectors.
void parts_of_rows() {
  abi::OpRecord record{};
  record.size[0] = 3, record.size[1] = 50257;
  test::set_divisors(record);
  abi::Operand head{};
  head.stride[0] = 50258, head.stride[1] = 1, head.dtype = 7, head.offset = 1606;
  const FakeContext context{{&record}, {head}};
  for (const i64 begin : {0, 1000, 50000, 50257, 80000}) {
    const RowSlots<FakeProgram<2>, V, FakeContext> slots(context, 0, begin, begin + 32490);
    expect(slots.count <= 32490 / V + 4, cat(slots.count, " slots of an item from ", begin));
  }
  head.stride[0] = 50264, head.offset = 1600;
  record.size[1] = 50256;
  test::set_divisors(record);
  const FakeContext aligned{{&record}, {head}};
  const RowSlots<FakeProgram<2>, V, FakeContext> slots(aligned, 0, 0, 2 * 50256);
  expect(slots.count == 2 * 50256 / V, cat(slots.count, " slots of aligned rows"));
}

void whole_rows() {
  check_case<2>({2048, 769}, 1537, 768, {16 * 769, 32 * 769});
  check_case<2>({4, 64}, 64, 0, {0, 256});  // aligned: no slot is partly empty
  check_case<2>({4, 64}, 64, 7, {70, 71});  // one element
}

}  // namespace

int main() {
  whole_rows();
  parts_of_rows();
  random_cases();
  return finish("row slots");
}
