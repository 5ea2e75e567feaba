// The generated programs of plan "pointwise_flat" (programs.inc), run on the host by the slots of rows that begin
// anywhere (device/program/pointwise_row_walk.cuh) and by elements: the same values, and nothing outside the operands
// is touched.
#include <cstdio>
#include <string>

#define __device__
#define __forceinline__ inline
#include "device/program/support.cuh"
// of this folder, before what is written for the device
#include "device/program/pointwise_flat.cuh"
#include "device/program/pointwise_places.cuh"
#include "device/program/pointwise_row_walk.cuh"
#include "operand_values.h"

namespace ark::device {
#include "programs.inc"
}

using namespace ark::device;

namespace {

/// The type, and the dimensions that it moves along, as a mask.
struct Access {
  i32 dtype;
  int dims;
};

/// Operands whose rows are up to 9 elements apart in memory, or side by side; the last one is the result.
class Operands {
 public:
  Operands(const std::vector<i64>& sizes, const std::vector<Access>& accesses, int vector) {
    memory = {};
    for (const Access& access : accesses) {
      ark::abi::Operand o{};
      o.dtype = static_cast<short>(access.dtype);
      i64 count = 1;
      const size_t last = sizes.size() - 1;
      for (size_t d = sizes.size(); d-- > 0;) {
        if ((access.dims >> d & 1) == 0) continue;
        o.stride[d] = count;
        count *= sizes[d] + (d == last && up_to(2) == 0 ? up_to(10) : 0);
      }
      offsets_.push_back(up_to(2) == 0 ? up_to(8) : 0);
      bytes_.push_back(random_memory(o, count, offsets_.back()));
      operands.push_back(o);
    }
    // What lies in every row as the result does, modulo a vector, moves by vectors.
    for (size_t i = 0; i < operands.size(); ++i) {
      bool alike = operands[i].stride[sizes.size() - 1] == 1 && (offsets_[i] - offsets_.back()) % vector == 0;
      for (size_t d = 0; d + 1 < sizes.size(); ++d)
        alike = alike && (sizes[d] == 1 || (operands[i].stride[d] - operands.back().stride[d]) % vector == 0);
      operands[i].vector = alike ? static_cast<signed char>(vector) : 1;
    }
  }
  std::vector<unsigned char>& result() { return bytes_.back(); }

  std::vector<ark::abi::Operand> operands;

 private:
  std::vector<i64> offsets_;
  std::vector<std::vector<unsigned char>> bytes_;
};

int cases = 0, failures = 0, shifted = 0;

template <class P>
void check(const std::vector<i64>& sizes, const std::vector<Access>& accesses) {
  constexpr int V = P::kVector;
  static_assert(kWalksRows<P>);
  ark::abi::OpRecord record{};
  i64 total = 1;
  for (size_t d = 0; d < sizes.size(); ++d) record.size[d] = sizes[d], total *= sizes[d];
  for (int d = 0; d < ark::abi::kMaxDims; ++d)
    record.params.program.by[d] = ark::abi::divisor_of(static_cast<u32>(std::max<i64>(record.size[d], 1)));
  const i64 begin = up_to(2) == 0 ? 0 : up_to(total), end = up_to(2) == 0 ? total : begin + 1 + up_to(total - begin);
  Operands data(sizes, accesses, V);
  const Task task{&record, data.operands.data()};
  const ProgramContext c{task};
  const int head = head_operand<P, V>(c);
  ++cases, shifted += has_shifted<P, V>(c);
  const std::vector<unsigned char> before = data.result();
  for (i64 e = begin; e < end; ++e) {
    i32 x[P::kDims] = {};
    unflatten<0, P::kDims>(record, e, x);
    run_element<P>(c, x);
  }
  const std::vector<unsigned char> expected = data.result();
  std::copy(before.begin(), before.end(), data.result().begin());
  for (int thread = 0; thread < kConsumerThreads; ++thread) {
    Consumer consumer{thread};
    PointwiseRowWalk<P>(consumer, c, head, begin, end).run();
  }
  if (memory.fine && data.result() == expected) return;
  ++failures;
  std::printf("rows of %lld of %lld elements, [%lld, %lld): %s\n", static_cast<long long>(sizes.back()),
              static_cast<long long>(total), static_cast<long long>(begin), static_cast<long long>(end),
              memory.fine ? "values" : "an access outside or off alignment");
}

std::vector<Access> of_type(i32 dtype) { return {{dtype, 7}, {dtype, 2}, {dtype, 1 | 4}, {dtype, 7}}; }

}  // namespace

int main() {
  const i32 kU8 = ark::abi::kTypeU8;
  for (int i = 0; i < 2000; ++i) {
    const std::vector<i64> sizes = {1 + up_to(4), 1 + up_to(6), 1 + up_to(70)};
    check<Program0>(sizes, of_type(kTypeBF16));
    check<Program1>(sizes, of_type(kU8));
    check<Program2>(sizes, of_type(kTypeF32));
    check<Program3>(sizes, of_type(kTypeI64));
    check<Program4>(sizes, of_type(kTypeF64));
    check<Program5>({1 + up_to(9), 1 + up_to(90)}, {{kTypeBF16, 3}, {kTypeF32, 2}, {kU8, 1}, {kTypeF32, 3}});
    check<Program6>({1 + up_to(3), 1 + up_to(3), 1 + up_to(3), 1 + up_to(3), 1 + up_to(3), 1 + up_to(70)},
                    {{kTypeF32, 63}, {kTypeBF16, 2 | 8}, {kTypeF32, 63}});
    check<Program7>(sizes,
                    {{kTypeBF16, 7}, {kTypeF32, 2}, {kTypeF32, 2}, {kTypeBF16, 2}, {kTypeBF16, 2}, {kTypeBF16, 7}});
  }
  std::printf("%d cases, %d with shifted operands, %d failures\n", cases, shifted, failures);
  return failures != 0 || shifted < cases / 4;
}
