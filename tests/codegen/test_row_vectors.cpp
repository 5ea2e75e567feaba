// Rows and their vectors (device/program/row_kept.cuh): the index arithmetic that device code shares with this test.
// Every row has one group of threads, every element one place in one vector, and no vector is read that has none.
#include <vector>

#include "device/abi/row_vectors.h"
#include "support/check.h"

using namespace ark;

namespace {

void every_element_once(int size, int length, int shift) {
  const int vectors = (size + 2 * (length - 1)) / length;  // that a row of any shift may touch
  std::vector<int> met(static_cast<size_t>(size));
  for (int number = 0; number < vectors + 3; ++number) {
    const abi::RowVector v = abi::row_vector(number, length, shift, size);
    EXPECT((v.at + shift) % length == 0 && (v.place + shift) % length == 0);
    EXPECT(0 <= v.low && v.low < v.high && v.high <= length);
    EXPECT(v.place + v.low >= 0 && v.place + v.high <= size);
    EXPECT(v.inside == 0 || v.place == v.at);
    for (int i = 0; i < length; ++i) {
      const bool is_the_rows = v.at + i >= 0 && v.at + i < size;
      EXPECT((v.inside >> i & 1) == (is_the_rows ? 1u : 0u));
      if (is_the_rows) ++met[static_cast<size_t>(v.at + i)];
    }
    EXPECT(v.inside >> length == 0);
  }
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
    for (int shift = 0; shift < length; ++shift)
      for (int size = 1; size < 80; ++size) every_element_once(size, length, shift);
  for (const int groups : {1, 8, 32, 64})
    for (const int rows : {1, 2, 4})
      for (int64_t count = 1; count < 300; count += 7) every_row_once(count, groups, rows);
  return test::result("row vectors");
}
