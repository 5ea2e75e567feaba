// The boxes of bytes of planner/verify/regions.h: whether two of them meet, against enumeration.
#include <algorithm>
#include <random>
#include <set>

#include "planner/verify/regions.h"
#include "support/check.h"

using namespace ark;
using planner::Box;
using planner::Overlap;

namespace {

Box random_box(std::mt19937& random) {
  auto draw = [&](int low, int high) {
    return static_cast<int64_t>(low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
  };
  static constexpr int64_t kStrides[] = {120, 24, 12, 4, 60, 30, 7};
  Box box;
  box.begin = draw(0, 200);
  box.width = draw(1, 10);
  if (draw(0, 5) == 0) box.width = draw(1, 150);
  int64_t inner = box.width;
  std::vector<int64_t> strides;
  for (int i = 0; i < 3; ++i) strides.push_back(kStrides[draw(0, random() % 4 ? 3 : 6)]);
  std::sort(strides.begin(), strides.end());
  for (int64_t s : strides) {
    if (s <= inner || draw(0, 2) == 0) continue;
    int64_t count = draw(2, 4);
    box.dims[box.num_dims++] = {count, s};
    inner += (count - 1) * s;
  }
  std::reverse(box.dims, box.dims + box.num_dims);
  return box;
}

std::set<int64_t> bytes_of(const Box& box, int dim = 0, int64_t begin = 0) {
  std::set<int64_t> out;
  if (dim == box.num_dims) {
    for (int64_t i = 0; i < box.width; ++i) out.insert(box.begin + begin + i);
    return out;
  }
  for (int64_t i = 0; i < box.dims[dim].count; ++i) out.merge(bytes_of(box, dim + 1, begin + i * box.dims[dim].stride));
  return out;
}

void test_overlap() {
  std::mt19937 random(7);
  int yes = 0, no = 0, unknown = 0;
  for (int i = 0; i < 20'000; ++i) {
    Box a = random_box(random), b = random_box(random);
    std::set<int64_t> x = bytes_of(a), y = bytes_of(b);
    bool meet = std::any_of(x.begin(), x.end(), [&](int64_t byte) { return y.contains(byte); });
    Overlap answer = overlap(a, b);
    EXPECT_EQ(a.end(), *x.rbegin() + 1);
    if (answer == Overlap::kUnknown) {
      ++unknown;
      continue;
    }
    ++(meet ? yes : no);
    EXPECT_EQ(answer == Overlap::kYes, meet);
  }
  std::printf("boxes: %d meet, %d do not, %d unknown\n", yes, no, unknown);
  EXPECT(yes > 2000 && no > 2000);
}

/// Columns of a matrix: apart, though their hulls meet.
void test_columns() {
  Box left{.begin = 0, .width = 64, .num_dims = 1, .dims = {{100, 128}}}, right = left;
  right.begin = 64;
  EXPECT(overlap(left, right) == Overlap::kNo);
  right.begin = 63;
  EXPECT(overlap(left, right) == Overlap::kYes);
  Box run{.begin = 64, .width = 128};  // from the middle of one row to the middle of the next
  EXPECT(overlap(left, run) == Overlap::kYes);
  run.width = 64;
  EXPECT(overlap(left, run) == Overlap::kNo);
}

}  // namespace

int main() {
  test_overlap();
  test_columns();
  return test::result("boxes");
}
