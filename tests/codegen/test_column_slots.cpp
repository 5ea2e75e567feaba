// Slots of columns whose rows begin anywhere between aligned addresses (device/program/column_slots.cuh): the index
// arithmetic that device code shares with this test. Every element has one thread, whose slot is aligned in all its
// rows.
#include <algorithm>
#include <vector>

#include "device/abi/column_slots.h"
#include "support/check.h"

using namespace ark;

namespace {

constexpr int kThreads = 256;

/// `border`: where the columns of a second run begin, which lies `apart` elements from where the first would go on; as
/// many as there are columns: one run.
void every_element_once(int rows, int columns, int border, int apart, int length, int stride, int offset) {
  const int period = abi::alignment_period(stride & (length - 1), length);
  const abi::ColumnSlots s = abi::column_slots(columns, border < columns ? 2 : 1, length, period, kThreads);
  EXPECT(period <= length && s.groups > 0 && s.groups % period == 0 && s.lanes * s.groups <= kThreads);
  EXPECT(s.columns % length == 0 && s.columns * s.groups <= kThreads * length);  // sums have room
  std::vector<int> met(static_cast<size_t>(rows) * static_cast<size_t>(columns));
  for (int start = 0; start < columns; start += s.columns) {
    const int count = std::min(s.columns, columns - start);
    const int cut = std::max(std::min(border - start, count), 0), slots = abi::slots_of(cut, length);
    EXPECT(slots + abi::slots_of(count - cut, length) <= s.lanes);
    for (int thread = 0; thread < s.lanes * s.groups; ++thread) {
      const int lane = thread % s.lanes, group = thread / s.lanes;
      const bool second = lane >= slots;
      const int from = second ? cut : 0, to = second ? count : cut,
                begin = offset + (second ? apart : 0) + start + from;
      const int before = (second ? lane - slots : lane) * length - ((begin + group * stride) & (length - 1));
      const int low = std::max(0, -before), high = std::min(length, to - from - before);
      for (int row = group; row < rows && low < high; row += s.groups) {
        EXPECT((begin + row * stride + before) % length == 0);
        for (int i = low; i < high; ++i) ++met[static_cast<size_t>(row * columns + start + from + before + i)];
      }
    }
  }
  EXPECT(std::all_of(met.begin(), met.end(), [](int times) { return times == 1; }));
}

/// A thread's vectors of a run begin at the same column each.
void same_columns_again(int row, int length) {
  const int threads = abi::folding_threads(row, length, kThreads);
  EXPECT(threads > 0 && threads <= kThreads && threads * length % row == 0 && threads * 2 > kThreads - row);
}

}  // namespace

int main() {
  for (const int length : {2, 4, 8, 16})
    for (int row = 1; row < 4 * length; ++row) same_columns_again(row, length);
  for (const int length : {2, 4, 8})
    for (int stride = 600; stride < 600 + length; ++stride)
      for (int offset = 0; offset < length; ++offset)
        for (const int columns : {1, 7, 31, 32, 192, 247, 248, 249, 256, 600})
          for (const int border : {columns, columns / 2, 1, columns - 1})
            for (const int apart : {0, 5})
              if (border > 0) every_element_once(33, columns, border, apart, length, stride, offset);
  return test::result("column slots");
}
