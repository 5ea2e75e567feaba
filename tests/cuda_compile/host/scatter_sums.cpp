// Sums by index on the host, by the threads of a worker (threads.h, device/program/scatter_sum.cuh), against terms
// added one by one. Values are small integers, so that the order does not matter.
#include <cstdio>
#include <memory>
#include <random>

#define ARK_HOST_THREADS 256
#define __device__
#define __forceinline__ inline
#include "device/program/support.cuh"
// of this folder, before what is written for the device

namespace {

/// What the lanes of a warp tell each other.
struct Warp {
  Meeting barrier{32};
  long long said[32];
};
std::vector<Warp>* warps_of_worker;
Warp& own_warp() { return (*warps_of_worker)[static_cast<size_t>(threads.own() / 32)]; }
int own_lane() { return threads.own() % 32; }

/// f(what every lane has said).
template <class F>
auto exchange(long long mine, const F& f) {
  Warp& warp = own_warp();
  warp.said[own_lane()] = mine;
  warp.barrier.arrive_and_wait();
  const auto result = f(warp.said);
  warp.barrier.arrive_and_wait();
  return result;
}
unsigned lanes_that_say(const long long* said, long long what) {
  unsigned mask = 0;
  for (int lane = 0; lane < 32; ++lane) mask |= (said[lane] == what ? 1u : 0u) << lane;
  return mask;
}
unsigned __ballot_sync(unsigned, bool vote) {
  return exchange(vote, [](const long long* said) { return lanes_that_say(said, 1); });
}
unsigned __match_any_sync(unsigned, int value) {
  return exchange(value, [&](const long long* said) { return lanes_that_say(said, value); });
}
int __shfl_up_sync(unsigned, int value, int by) {
  return exchange(value, [&](const long long* said) { return static_cast<int>(said[std::max(own_lane() - by, 0)]); });
}
void __syncwarp() { own_warp().barrier.arrive_and_wait(); }
int __popc(unsigned x) { return __builtin_popcount(x); }

}  // namespace

#include "device/program/scatter_sum.cuh"

using namespace ark::device;

namespace {

struct Types {
  static constexpr u32 kScatterTypes = 1u << kTypeF32 | 1u << kTypeBF16;
};

std::mt19937 engine(11);
i64 up_to(i64 n) { return static_cast<i64>(engine() % static_cast<u64>(n)); }

template <class S>
ark::abi::Operand operand(const std::vector<S>& values, i32 dtype, i64 stride) {
  ark::abi::Operand o{};
  o.dtype = static_cast<short>(dtype);
  o.offset = reinterpret_cast<i64>(values.data());
  o.stride[0] = stride;
  o.stride[1] = 1;
  return o;
}

int cases = 0, failures = 0;

/// `favourite`: of so many parts of 10 of the terms the row is one of the first two.
template <class S, int kType>
void check(int rows, int terms, int columns, int tile_rows, int lanes, int favourite) {
  using X = ark::abi::ScatterSumOperand;
  std::vector<S> source(static_cast<size_t>(terms) * columns), out(static_cast<size_t>(rows) * columns);
  std::vector<i64> index(static_cast<size_t>(terms));
  for (S& x : source) x = narrow<S>(static_cast<float>(up_to(3)));
  for (i64& x : index) x = up_to(10) < favourite ? up_to(2) : up_to(rows + 2) - 1;
  ark::abi::OpRecord record{};
  ark::abi::ScatterSumParams& p = record.params.scatter_sum;
  const int most = 16 / static_cast<int>(sizeof(S));
  p = {rows, columns, terms, tile_rows, lanes, columns % most == 0 ? most : 1, kType, ark::abi::kTypeI64, rows / 2};
  const int wide = lanes * p.vector;
  record.grid[0] = (rows + tile_rows - 1) / tile_rows;
  record.grid[1] = (columns + wide - 1) / wide;
  record.grid[2] = 1;
  std::vector<ark::abi::Operand> operands(X::kCount);
  operands[X::kIndex] = operand(index, ark::abi::kTypeI64, 1);
  operands[X::kSource] = operand(source, kType, columns);
  operands[X::kOut] = operand(out, kType, columns);
  memory = {};
  for (const ark::abi::Operand& o : operands)
    memory.ranges.push_back({static_cast<u64>(o.offset), static_cast<u64>(o.offset)});
  memory.ranges[X::kIndex].second += index.size() * 8;
  memory.ranges[X::kSource].second += source.size() * sizeof(S);
  memory.ranges[X::kOut].second += out.size() * sizeof(S);
  std::vector<float> expected(out.size());
  for (int t = 0; t < terms; ++t)
    for (int c = 0; c < columns && index[t] >= 0 && index[t] < rows && index[t] != p.without; ++c)
      expected[static_cast<size_t>(index[t]) * columns + c] += widen(source[static_cast<size_t>(t) * columns + c]);
  const Task task{&record, operands.data(), 0, record.grid[0] * record.grid[1]};
  std::vector<unsigned char> scratch(kScratchBytes);
  Meeting barrier(kConsumerThreads);
  std::vector<Warp> warps(kConsumerThreads / 32);
  warps_of_worker = &warps;
  threads.run(kConsumerThreads, [&](int t) {
    Consumer consumer{t, &barrier, scratch.data()};
    ScatterSum<Types>::consume(consumer, task);
  });
  ++cases;
  bool same = memory.fine;
  for (size_t i = 0; i < out.size(); ++i) same = same && widen(out[i]) == widen(narrow<S>(expected[i]));
  if (same) return;
  ++failures;
  std::printf("%d terms into %d x %d, tiles of %d rows, %d lanes\n", terms, rows, columns, tile_rows, lanes);
}

}  // namespace

int main() {
  for (int i = 0; i < 12; ++i) {
    const int rows = 1 + static_cast<int>(up_to(600)), columns = i % 3 == 0 ? 5 : 64;
    const int tile_rows = 1 << (3 + up_to(6)), lanes = up_to(2) == 0 ? 8 : 32;
    check<float, kTypeF32>(rows, 1 + static_cast<int>(up_to(1500)), columns, tile_rows, lanes, 0);
    check<bf16, kTypeBF16>(rows, 1 + static_cast<int>(up_to(1500)), columns, tile_rows, lanes, 5);
  }
  check<float, kTypeF32>(40, 5000, 64, 32, 8, 9);  // longer lists than there is room for
  check<float, kTypeF32>(2, 5000, 64, 1, 8, 0);
  check<float, kTypeF32>(300, 4000, 64, 256, 32, 3);
  // several tiles across that use one list
  check<float, kTypeF32>(500, 900, 200, 128, 8, 2);
  check<bf16, kTypeBF16>(500, 300, 520, 256, 8, 0);
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures != 0;
}
