// What long rows call in turn, on the host: random numbers of any indices and functions of a vector, against elements.
#include <cstdio>

#define __device__
#define __forceinline__ inline
#include "device/program/in_turn.cuh"
#include "device/program/random.cuh"
#include "operand_values.h"

using namespace ark::device;

namespace {

int cases = 0, failures = 0;

template <int V>
void check_random(i64 seed, i64 offset, const i64 (&index)[V]) {
  float out[V];
  op::rand_in_turn<V>(seed, offset, index, out);
  bool same = true;
  for (int i = 0; i < V; ++i) same = same && out[i] == op::rand(seed, offset, index[i]);
  ++cases;
  if (same) return;
  ++failures;
  std::printf("%d numbers from %lld\n", V, static_cast<long long>(index[0]));
}

template <int V>
void check_neighbours(i64 seed, i64 offset, i64 first) {
  float out[V];
  op::rand_in_turn<V>(seed, offset, first, out);
  bool same = true;
  for (int i = 0; i < V; ++i) same = same && out[i] == op::rand(seed, offset, first + i);
  ++cases;
  if (same) return;
  ++failures;
  std::printf("%d neighbours from %lld\n", V, static_cast<long long>(first));
}

template <int V>
void check_vector() {
  for (const i64 first : {i64{0}, i64{4}, i64{7}, i64{128253}, i64{1} << 40}) {
    i64 run[V], any[V];
    for (int i = 0; i < V; ++i) run[i] = first + i, any[i] = first + up_to(9) * (i % 3);
    for (const i64 offset : {0, 1}) {
      check_random<V>(1234567890123 + first, offset, run);
      check_random<V>(-5, offset, any);
      for (i64 i = 0; i < 4; ++i) check_neighbours<V>(-5, offset, first + i);
    }
  }
  float in[V], out[V];
  for (int i = 0; i < V; ++i) in[i] = static_cast<float>(i + 1);
  op::in_turn<V>(in, out, [](float x) { return 3 * x + 1; });
  op::in_turn<V>(in, in, [](float x) { return 3 * x + 1; });
  for (int i = 0; i < V; ++i) failures += out[i] != static_cast<float>(3 * i + 4) || in[i] != out[i];
  ++cases;
}

}  // namespace

int main() {
  check_vector<1>();
  check_vector<2>();
  check_vector<3>();
  check_vector<4>();
  check_vector<8>();
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures != 0;
}
