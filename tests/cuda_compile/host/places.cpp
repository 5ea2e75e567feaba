// Places of extremes (device/program/extreme_place.cuh) on the host: rows that threads share as rows are shared, in
// order, with elements beside the vectors last, against the first of the extremes.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#define __device__
#define __forceinline__ inline
#include "device/ptx/base.cuh"

namespace ark::device::op {
template <class T>
inline constexpr bool kIsFloat = std::is_floating_point_v<T>;
inline float infinity() { return std::numeric_limits<float>::infinity(); }
}  // namespace ark::device::op
#include "device/program/extreme_place.cuh"

using namespace ark::device;

namespace {

std::mt19937 random_numbers(1);
int up_to(int n) { return static_cast<int>(random_numbers() % static_cast<unsigned>(n + 1)); }
int cases = 0, failures = 0;

/// The first NaN, else the first of the extremes.
template <class T, bool kMax>
i64 expected(const std::vector<T>& row) {
  size_t best = 0;
  for (size_t i = 1; i < row.size(); ++i) {
    if (row[best] != row[best]) break;
    if (row[i] != row[i] || (kMax ? row[i] > row[best] : row[i] < row[best])) best = i;
  }
  return static_cast<i64>(best);
}

template <class T, bool kMax>
i64 found(const std::vector<T>& row, int threads, int vector, int head) {
  const int size = static_cast<int>(row.size()), end = head + (size - head) / vector * vector;
  std::vector<ArgAccumulator<T, kMax>> of(static_cast<size_t>(threads));
  for (int t = 0; t < threads; ++t) {
    ArgAccumulator<T, kMax>& own = of[static_cast<size_t>(t)];
    own.start();
    for (int first = head + t * vector; first < end; first += threads * vector)
      for (int i = first; i < first + vector; ++i) own.template add_of_row<true>(row[static_cast<size_t>(i)], i);
    for (int i = t; i < size; i += threads)
      if (i < head || i >= end) own.template add_of_row<false>(row[static_cast<size_t>(i)], i);
  }
  for (int mask = threads / 2; mask > 0; mask /= 2)  // as shuffles do
    for (int t = 0; t < mask; ++t) of[static_cast<size_t>(t)].merge(of[static_cast<size_t>(t + mask)]);
  return of[0].result();
}

template <class T, bool kMax>
void check(const std::vector<T>& values) {
  std::vector<T> row(static_cast<size_t>(1 + up_to(70)));
  const int kinds = up_to(static_cast<int>(values.size()) - 1);
  for (T& x : row) x = values[static_cast<size_t>(up_to(kinds))];
  const int vector = 1 << up_to(3), head = vector == 1 ? 0 : std::min(up_to(vector - 1), static_cast<int>(row.size()));
  ++cases;
  const i64 is = found<T, kMax>(row, 1 << up_to(5), vector, head), should = expected<T, kMax>(row);
  if (is == should) return;
  ++failures;
  std::printf("%d elements: %lld instead of %lld\n", static_cast<int>(row.size()), static_cast<long long>(is),
              static_cast<long long>(should));
}

template <class T>
void check_type(std::vector<T> values) {
  for (int i = 0; i < 20000; ++i) {
    std::shuffle(values.begin(), values.end(), random_numbers);
    check<T, true>(values);
    check<T, false>(values);
  }
}

}  // namespace

int main() {
  const float inf = op::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  check_type<float>({-inf, inf, nan, 0.0f, -0.0f, 1.0f, -2.5f, std::numeric_limits<float>::max()});
  check_type<double>({-inf, inf, nan, 0.0, -0.0, 1e300, -1e-300});
  check_type<i64>({std::numeric_limits<i64>::min(), std::numeric_limits<i64>::max(), 0, -1, 1});
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures == 0 ? 0 : 1;
}
