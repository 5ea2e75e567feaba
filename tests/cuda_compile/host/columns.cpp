// The generated programs of plan "column" (programs.inc), run on the host by a worker of a few threads (threads.h)
// (device/program/column.cuh): the results of elements that are added one by one, and no vector is read that has none
// of an operand's elements.
#include <cstdio>
#include <random>

#define ARK_HOST_THREADS 32
#define __device__
#define __forceinline__ inline
#include "device/program/support.cuh"
// of this folder, before what is written for the device
#include "../../support/words_on_host.h"
#include "device/program/column.cuh"

namespace ark::device {

template <class T, class Merge>
struct Accumulator {
  T value;
  void start() { value = Merge::start(); }
  void add(T x, i64) { value = Merge::of(value, x); }
  void merge(const Accumulator& o) { value = Merge::of(value, o.value); }
  T result() const { return value; }
};
struct Sum {
  static int start() { return 0; }
  template <class T>
  static T of(T a, T b) {
    return a + b;
  }
};
struct Product {
  static int start() { return 1; }
  template <class T>
  static T of(T a, T b) {
    return a * b;
  }
};
struct Greatest {
  static int start() { return -1000000; }
  template <class T>
  static T of(T a, T b) {
    return std::max(a, b);
  }
};
template <class T>
using SumAccumulator = Accumulator<T, Sum>;
template <class T>
using ProdAccumulator = Accumulator<T, Product>;
template <class T>
using MaxAccumulator = Accumulator<T, Greatest>;
template <class T, bool kMax>
struct ArgAccumulator {
  i64 index;
  T value;
  void start() { index = 1 << 30, value = 1000000; }
  void add(T x, i64 i) { merge({i, x}); }
  void merge(const ArgAccumulator& o) {
    if (o.value < value || (o.value == value && o.index < index)) *this = o;
  }
  i64 result() const { return index; }
};
#include "programs.inc"

}  // namespace ark::device

using namespace ark::device;

namespace {

std::mt19937 engine(7);
i64 up_to(i64 n) { return static_cast<i64>(engine() % static_cast<u64>(n)); }

template <class P>
struct OneProgram {
  template <class F>
  static void column(int, F&& f) {
    f(P{});
  }
};

struct Access {
  i32 dtype;
  int dims;  // that it moves along, as a mask
};

/// Operands of small numbers between others, anywhere; some are as far from alignment as the first one.
struct Data {
  std::vector<ark::abi::Operand> operands;
  std::vector<std::vector<unsigned char>> bytes;

  Data(const std::vector<i64>& sizes, const std::vector<Access>& accesses) {
    memory = {};
    const i64 phase = up_to(8), padding = up_to(3) == 0 ? up_to(9) : 0;
    for (const Access& a : accesses) {
      ark::abi::Operand o{};
      o.dtype = static_cast<short>(a.dtype);
      o.vector = 1;
      i64 count = 1;
      for (size_t d = sizes.size(); d-- > 0;) {
        if ((a.dims >> d & 1) == 0) continue;
        o.stride[d] = count;
        count = count * sizes[d] + (d + 1 == sizes.size() ? padding : 0);
      }
      const i64 size = element_bytes(a.dtype);
      std::vector<unsigned char> raw(static_cast<size_t>((count + 40) * size + 64));
      const i64 begin = (reinterpret_cast<i64>(raw.data()) + 31) / 16 * 16;
      o.offset = begin + (up_to(3) != 0 ? phase : up_to(8)) * size;
      for (i64 at = begin; at + size <= reinterpret_cast<i64>(raw.data() + raw.size()); at += size) {
        const double as_double = static_cast<double>(up_to(5));
        const float as_float = static_cast<float>(as_double);
        const bf16 as_bf16 = narrow<bf16>(as_float);
        const i64 as_integer = static_cast<i64>(as_double);
        const void* from = &as_integer;
        if (a.dtype == kTypeBF16) from = &as_bf16;
        if (a.dtype == kTypeF32) from = &as_float;
        if (a.dtype == kTypeF64) from = &as_double;
        std::memcpy(reinterpret_cast<void*>(at), from, static_cast<size_t>(size));
      }
      const u64 end = static_cast<u64>(o.offset + count * size);
      memory.ranges.push_back({static_cast<u64>(o.offset) / 16 * 16, (end + 15) / 16 * 16});
      bytes.push_back(std::move(raw));
      operands.push_back(o);
    }
  }
};

int cases = 0, failures = 0;

template <class P>
void reference(const Task& task) {
  const ark::abi::OpRecord& r = *task.record;
  const ark::abi::ProgramParams& p = r.params.program;
  const ProgramContext c(task);
  for (i64 first = 0; first < p.row_size; first += p.split) {
    for (i64 column = 0; column < p.num_rows; ++column) {
      decltype(P::accumulator(Pass<0>{})) acc[1];
      acc[0].start();
      typename P::Uniform u{};
      i32 x[P::kDims] = {};
      unflatten<P::kReduceDims, P::kDims>(r, column, x);
      for (i64 e = first; e < std::min(first + p.split, p.row_size); ++e) {
        unflatten<0, P::kReduceDims>(r, e, x);
        typename P::template Inputs<1> in;
        P::template load<1>(c, x, in);
        P::template element<1>(Pass<0>{}, c, x, e, in, u, acc, NoSink{});
      }
      P::finish(acc[0], u);
      std::fill(x, x + P::kReduceDims, 0);
      x[0] = static_cast<i32>(first / p.split);
      P::uniform_stores(c, x, u);
    }
  }
}

/// The accesses from `stores` on are results.
template <class P>
void check(const std::vector<i64>& sizes, const std::vector<Access>& accesses, size_t stores) {
  ark::abi::OpRecord record{};
  ark::abi::ProgramParams& p = record.params.program;
  p.num_rows = p.row_size = 1;
  for (int d = 0; d < P::kDims; ++d) {
    record.size[d] = sizes[static_cast<size_t>(d)];
    (d < P::kReduceDims ? p.row_size : p.num_rows) *= record.size[d];
  }
  for (int d = 0; d < ark::abi::kMaxDims; ++d)
    p.by[d] = ark::abi::divisor_of(static_cast<u32>(std::max<i64>(record.size[d], 1)));
  p.tile = up_to(3) == 0 ? p.num_rows : up_to(2) == 0 ? 8 + 8 * up_to(12) : 1 + up_to(p.num_rows);
  p.split = up_to(3) == 0 ? 1 + up_to(p.row_size) : p.row_size;
  Data data(sizes, accesses);
  const i64 splits = (p.row_size + p.split - 1) / p.split, blocks = (p.num_rows + p.tile - 1) / p.tile;
  for (size_t i = stores; i < accesses.size(); ++i) {  // partial results one after the other
    ark::abi::Operand& o = data.operands[i];
    const i64 size = element_bytes(o.dtype);
    data.bytes[i].assign(static_cast<size_t>(splits * p.num_rows * size + 16), 0);
    o.offset = (reinterpret_cast<i64>(data.bytes[i].data()) + 15) / 16 * 16;
    i64 stride = 1;
    for (int d = P::kDims; d-- > P::kReduceDims;) o.stride[d] = stride, stride *= record.size[d];
    o.stride[0] = p.num_rows;
    memory.ranges[i] = {static_cast<u64>(o.offset), static_cast<u64>(o.offset + splits * p.num_rows * size)};
  }
  const Task task{&record, data.operands.data(), 0, static_cast<int>(splits * blocks)};
  reference<P>(task);
  const std::vector<std::vector<unsigned char>> expected = data.bytes;
  for (size_t i = stores; i < accesses.size(); ++i) std::fill(data.bytes[i].begin(), data.bytes[i].end(), 0);
  Meeting barrier(kConsumerThreads);
  std::vector<unsigned char> scratch(kScratchBytes);
  threads.run(kConsumerThreads, [&](int t) {
    Consumer consumer{t, &barrier, scratch.data()};
    Column<OneProgram<P>>::consume(consumer, task);
  });
  ++cases;
  if (memory.fine && data.bytes == expected) return;
  ++failures;
  std::printf("%lld x %lld, rows of %lld, tiles of %lld, splits of %lld: %s\n", static_cast<long long>(p.row_size),
              static_cast<long long>(p.num_rows), static_cast<long long>(sizes.back()), static_cast<long long>(p.tile),
              static_cast<long long>(p.split), memory.fine ? "values" : "an access outside or off alignment");
}

void sum(i32 dtype, i64 rows, i64 columns, int kind) {
  const std::vector<i64> sizes = {rows, columns};
  const std::vector<Access> accesses = {{dtype, 3}, {kTypeF32, 0}};
  if (kind == 2) check<Program2>(sizes, accesses, 1);
  if (kind == 3) check<Program3>(sizes, accesses, 1);
  if (kind == 4) check<Program4>(sizes, accesses, 1);
}

}  // namespace

int main() {
  for (int i = 0; i < 60; ++i) {
    const i64 rows = 1 + up_to(40), columns = 1 + up_to(150);
    check<Program0>({rows, columns}, {{kTypeBF16, 3}, {kTypeBF16, 3}, {kTypeF32, 0}, {kTypeF32, 0}}, 2);
    check<Program1>({1 + up_to(5), 1 + up_to(9), 1 + up_to(40)}, {{kTypeF64, 7}, {kTypeI64, 0}, {kTypeF64, 0}}, 1);
    sum(kTypeBF16, rows, columns, 2);
    sum(kTypeF32, rows, columns, 3);
    sum(ark::abi::kTypeU8, rows, columns, 4);
    for (const int kind : {2, 3, 4}) {  // runs of rows of few columns
      const i32 dtype = kind == 2 ? kTypeBF16 : kind == 3 ? kTypeF32 : ark::abi::kTypeU8;
      sum(dtype, 1 + up_to(600), 1 + up_to(20), kind);
    }
    const std::vector<i64> three = {rows, 1 + up_to(4), 1 + up_to(90)};
    check<Program5>(three, {{kTypeBF16, 7}, {kTypeF32, 5}, {kTypeBF16, 4}, {kTypeF32, 0}}, 3);
    check<Program5>(three, {{kTypeBF16, 7}, {kTypeF32, 7}, {kTypeBF16, 1}, {kTypeF32, 0}}, 3);
  }
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures != 0;
}
