// The generated programs of plan "pointwise_flat" (programs.inc), run on the host by vectors that end in the next row
// (device/program/pointwise_flat.cuh) and by elements: the same values, nothing outside the operands is touched.
#include <cstdio>
#include <string>

#define __device__
#define __forceinline__ inline
#include "device/program/support.cuh"
// of this folder, before what is written for the device
#include "device/program/pointwise_flat.cuh"
#include "device/program/pointwise_places.cuh"
#include "operand_values.h"

namespace ark::device {
#include "programs.inc"
}

using namespace ark::device;

namespace {

constexpr int kFlat = -1;

/// The dimensions that it moves along, as a mask, or kFlat.
struct Access {
  i32 dtype;
  int dims;
};

/// Operands of random values at random offsets; those that are flat are as far from alignment.
class Operands {
 public:
  Operands(const std::vector<i64>& sizes, const std::vector<Access>& accesses) {
    memory = {};
    const i64 phase = up_to(3) == 0 ? up_to(8) : 0;
    for (const Access& access : accesses) add(sizes, access, access.dims == kFlat ? phase : up_to(8));
  }
  std::vector<unsigned char>& result() { return bytes_.back(); }

  std::vector<ark::abi::Operand> operands;

 private:
  void add(const std::vector<i64>& sizes, const Access& access, i64 offset) {
    ark::abi::Operand o{};
    o.dtype = static_cast<short>(access.dtype);
    i64 count = 1;
    for (size_t d = sizes.size(); d-- > 0;) {
      if (access.dims != kFlat && (access.dims >> d & 1) == 0) continue;
      o.stride[d] = count;
      count *= sizes[d];
    }
    o.vector = o.stride[sizes.size() - 1] == 1 && up_to(2) == 0 ? 8 : 1;  // whether it is aligned is found out
    bytes_.push_back(random_memory(o, count, offset));
    operands.push_back(o);
  }
  std::vector<std::vector<unsigned char>> bytes_;
};

template <class P>
void run_flat(const ProgramContext& c, const FlatRange<P, ProgramContext>& range, i64 begin, i64 end, i64 total) {
  for (int thread = 0; thread < kConsumerThreads; ++thread) {
    Consumer consumer{thread};
    if (range.crosses)
      PointwiseFlat<P, true>(consumer, c).run(range.low, range.high);
    else
      PointwiseFlat<P, false>(consumer, c).run(range.low, range.high);
  }
  PointwisePlaces<P, P::kVector, ProgramContext> places(c, begin, end, total);
  places.leave_out(range.low, range.high);
  const ElementPlaces<P, P::kVector, ProgramContext> elements{places};
  for (i64 n = 0; n < elements.count(); ++n) {
    i32 x[P::kDims] = {};
    if (elements.at(n, x)) run_element<P>(c, x);
  }
}

int cases = 0, failures = 0;

/// The last access is the result's.
template <class P>
void check(const std::vector<i64>& sizes, const std::vector<Access>& accesses) {
  ark::abi::OpRecord record{};
  i64 total = 1;
  for (size_t d = 0; d < sizes.size(); ++d) record.size[d] = sizes[d], total *= sizes[d];
  for (int d = 0; d < ark::abi::kMaxDims; ++d)
    record.params.program.by[d] = ark::abi::divisor_of(static_cast<u32>(std::max<i64>(record.size[d], 1)));
  const i64 tile = up_to(2) == 0 ? total : 1 + up_to(total);
  const i64 begin = up_to((total + tile - 1) / tile) * tile, end = std::min(total, begin + tile);
  record.params.program.tile = tile;
  Operands data(sizes, accesses);
  const Task task{&record, data.operands.data()};
  const ProgramContext c{task};
  const FlatRange<P, ProgramContext> range(c, begin, end, total);
  if (!range.exists) return;
  ++cases;
  const std::vector<unsigned char> before = data.result();
  for (i64 e = begin; e < end; ++e) {
    i32 x[P::kDims] = {};
    unflatten<0, P::kDims>(record, e, x);
    run_element<P>(c, x);
  }
  const std::vector<unsigned char> expected = data.result();
  std::copy(before.begin(), before.end(), data.result().begin());
  run_flat<P>(c, range, begin, end, total);
  if (memory.fine && data.result() == expected) return;
  ++failures;
  std::printf("rows of %lld of %lld elements, [%lld, %lld): %s\n", static_cast<long long>(sizes.back()),
              static_cast<long long>(total), static_cast<long long>(begin), static_cast<long long>(end),
              memory.fine ? "values" : "an access outside or off alignment");
}

std::vector<Access> of_type(i32 dtype) { return {{dtype, kFlat}, {dtype, 2}, {dtype, 1 | 4}, {dtype, kFlat}}; }

}  // namespace

int main() {
  for (int i = 0; i < 1000; ++i) {
    const std::vector<i64> sizes = {1 + up_to(4), 1 + up_to(6), 1 + up_to(70)};
    check<Program0>(sizes, of_type(kTypeBF16));
    check<Program1>(sizes, of_type(ark::abi::kTypeU8));
    check<Program2>(sizes, of_type(kTypeF32));
    check<Program3>(sizes, of_type(kTypeI64));
    check<Program4>(sizes, of_type(kTypeF64));
    check<Program5>({1 + up_to(9), 1 + up_to(90)},
                    {{kTypeBF16, kFlat}, {kTypeF32, 2}, {ark::abi::kTypeU8, 1}, {kTypeF32, kFlat}});
    check<Program6>({1 + up_to(3), 1 + up_to(3), 1 + up_to(3), 1 + up_to(3), 1 + up_to(3), 1 + up_to(70)},
                    {{kTypeF32, kFlat}, {kTypeBF16, 2 | 8}, {kTypeF32, kFlat}});
    check<Program7>(
        sizes, {{kTypeBF16, kFlat}, {kTypeF32, 2}, {kTypeF32, 2}, {kTypeBF16, 2}, {kTypeBF16, 2}, {kTypeBF16, kFlat}});
  }
  std::printf("%d cases, %d failures\n", cases, failures);
  return failures != 0 || cases < 5000;
}
