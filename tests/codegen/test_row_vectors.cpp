// Rows and their vectors (device/program/row_kept.cuh): the index arithmetic that device code shares with this test.
// Every row has one group of threads, every element one place in a vector or at an edge, and nothing else is read.
#include <vector>

#include "device/abi/row_vectors.h"
#include "support/check.h"

using namespace ark;

namespace {

void every_element_once(int size, int length, int begin) {
  const abi::RowVectors row = abi::row_vectors(begin, length, size);
  std::vector<int> met(static_cast<size_t>(size));
  EXPECT(row.count >= 1);
  const auto meet = [&](const abi::RowPart& part, int elements) {
    EXPECT(0 <= part.at && part.at + elements <= size);  // whatever is read is the row's
    for (int i = 0; i < elements && part.inside; ++i) ++met[static_cast<size_t>(part.at + i)];
  };
  for (int number = 0; number < size / length + 3; ++number) {
    const abi::RowPart part = abi::row_vector(row, number, length);
    EXPECT((part.at - begin) % length == 0);
    meet(part, length);
  }
  for (int number = 0; number < abi::most_edges(length); ++number) meet(abi::row_edge(row, number, length, size), 1);
  for (const int times : met) EXPECT(times == 1);
}

void every_row_once(int64_t count, int groups, int rows) {
  std::vector<int> met(static_cast<size_t>(count));
  for (int64_t first = 0; first < count; first += int64_t{rows} * groups)
    for (int group = 0; group < groups; ++group) {
      const int existing = abi::rows_before(first + group, count, groups, rows);
      EXPECT(existing <= rows);
      for (int r = 0; r < existing; ++r) ++met[static_cast<size_t>(first + group + r * groups)];
    }
  for (const int times : met) EXPECT(times == 1);
}

}  // namespace

int main() {
  for (const int length : {2, 4, 8})
    for (int begin = 0; begin < length; ++begin)
      for (int size = 2 * length - 1; size < 80; ++size) every_element_once(size, length, begin);
  for (const int groups : {1, 8, 32, 64})
    for (const int rows : {1, 2, 4})
      for (int64_t count = 1; count < 300; count += 7) every_row_once(count, groups, rows);
  return test::result("row vectors");
}
