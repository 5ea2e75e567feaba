// The generated programs of plan "pointwise_flat" (programs.inc), run on the host by whole vectors
// (device/program/pointwise_whole.cuh) and by elements: the same values, and nothing outside the operands is touched.
#include <cstdio>
#include <string>

#define __device__
#define __forceinline__ inline
#include "device/program/support.cuh"
// of this folder, before what is written for the device
#include "device/program/pointwise_flat.cuh"
#include "device/program/pointwise_row_walk.cuh"
#include "device/program/pointwise_whole.cuh"
#include "operand_values.h"

namespace ark::device {
#include "programs.inc"
}

using namespace ark::device;

namespace {

constexpr int kVector = 8;
// By bf16 alone vectors of eight; where fp32 is beside it, of four.
static_assert(Program0::kWholeVector == kVector && Program5::kWholeVector == kVector / 2);

/// The type, and the dimensions that it moves along, as a mask.
struct Access {
  i32 dtype;
  int dims;
};

/// Rows of whole vectors, some of them apart in memory; the last operand is the result.
struct Operands {
  std::vector<ark::abi::Operand> all;
  std::vector<std::vector<unsigned char>> bytes;
  u32 scalars = 0;

  Operands(const std::vector<i64>& sizes, const std::vector<Access>& accesses) {
    memory = {};
    const size_t last = sizes.size() - 1;
    for (const Access& access : accesses) {
      ark::abi::Operand o{};
      o.dtype = static_cast<short>(access.dtype);
      o.vector = kVector;
      i64 count = 1;
      for (size_t d = sizes.size(); d-- > 0;) {
        if ((access.dims >> d & 1) == 0) continue;
        o.stride[d] = count;
        count *= sizes[d] + (d == last ? kVector * up_to(2) : 0);
      }
      if ((access.dims >> last & 1) == 0) scalars |= 1u << all.size();
      bytes.push_back(random_memory(o, count, kVector * up_to(3)));
      all.push_back(o);
    }
  }
};

int cases = 0, failures = 0;

template <class P>
void check(const std::vector<i64>& sizes, const std::vector<Access>& accesses) {
  ark::abi::OpRecord record{};
  ark::abi::ProgramParams& p = record.params.program;
  i64 total = 1;
  for (size_t d = 0; d < sizes.size(); ++d) record.size[d] = sizes[d], total *= sizes[d];
  for (int d = 0; d < ark::abi::kMaxDims; ++d)
    p.by[d] = ark::abi::divisor_of(static_cast<u32>(std::max<i64>(record.size[d], 1)));
  const i64 most = (total + kVector - 1) / kVector;
  p.tile = up_to(3) == 0 ? total : kVector * (1 + up_to(most));
  p.whole = kVector;
  p.elements = static_cast<i32>(total);
  Operands data(sizes, accesses);
  p.scalars = data.scalars;
  if (!PointwiseWhole<P>::serves(p)) return;
  ++cases;
  const i64 tiles = (total + p.tile - 1) / p.tile, first = up_to(tiles), count = 1 + up_to(tiles - first);
  const i64 begin = first * p.tile, end = std::min(total, (first + count) * p.tile);
  const WholeRange range(p, static_cast<i32>(first), static_cast<i32>(count), P::kVector);
  bool fine = range.begin == begin && range.count == end - begin && range.in_vectors % P::kVector == 0 &&
              range.count - range.in_vectors < P::kVector;
  const Task task{&record, data.all.data()};
  const ProgramContext c{task};
  std::vector<unsigned char>& result = data.bytes.back();
  const std::vector<unsigned char> before = result;
  for (i64 e = begin; e < begin + range.in_vectors; ++e) {
    i32 x[P::kDims] = {};
    unflatten<0, P::kDims>(record, e, x);
    run_element<P>(c, x);
  }
  const std::vector<unsigned char> expected = result;
  std::copy(before.begin(), before.end(), result.begin());
  for (int thread = 0; thread < kConsumerThreads; ++thread) {
    Consumer consumer{thread};
    PointwiseWhole<P>(consumer, c).run(range);
  }
  fine = fine && memory.fine && result == expected;
  if (fine) return;
  ++failures;
  std::printf("rows of %lld of %lld elements, [%lld, %lld): %s\n", static_cast<long long>(sizes.back()),
              static_cast<long long>(total), static_cast<long long>(begin), static_cast<long long>(end),
              memory.fine ? "values" : "an access outside or off alignment");
}

std::vector<Access> of_type(i32 dtype) { return {{dtype, 7}, {dtype, 2}, {dtype, 1 | 4}, {dtype, 7}}; }

}  // namespace

int main() {
  const i32 kU8 = ark::abi::kTypeU8;
  for (int i = 0; i < 1000; ++i) {
    const std::vector<i64> sizes = {1 + up_to(4), 1 + up_to(9), kVector * (1 + up_to(80))};
    check<Program0>(sizes, of_type(kTypeBF16));
    check<Program1>(sizes, of_type(kU8));
    check<Program2>(sizes, of_type(kTypeF32));
    check<Program3>(sizes, of_type(kTypeI64));
    check<Program4>(sizes, of_type(kTypeF64));
    check<Program5>({1 + up_to(9), kVector * (1 + up_to(90))},
                    {{kTypeBF16, 3}, {kTypeF32, 2}, {kU8, 1}, {kTypeF32, 3}});
    check<Program7>(sizes,
                    {{kTypeBF16, 7}, {kTypeF32, 2}, {kTypeF32, 2}, {kTypeBF16, 2}, {kTypeBF16, 2}, {kTypeBF16, 7}});
  }
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures != 0 || cases < 4000;
}
