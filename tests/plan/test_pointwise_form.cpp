// What records say of pointwise ops beside the plan (plan/pointwise_form.h): divisions by multiplication are exact, and
// where vectors are said to be whole every one of them is, by enumeration.
#include <random>

#include "plan/as_run.h"
#include "plan/pointwise_form.h"
#include "support/check.h"

using namespace ark;
using namespace ark::test;

namespace {

std::mt19937 engine(5);
int64_t up_to(int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); }

bool divides_exactly(uint32_t d) {
  constexpr uint32_t kMost = 0x7fffffff;
  const abi::Divisor by = abi::divisor_of(d);
  bool fine = true;
  const auto check = [&](int64_t n) {
    if (n >= 0 && n <= kMost) fine = fine && by.divide(static_cast<uint32_t>(n)) == static_cast<uint32_t>(n) / d;
  };
  for (const int64_t n : {0u, 1u, d, kMost, kMost / d * d}) check(n - 1), check(n), check(n + 1);
  for (int i = 0; i < 40; ++i) {
    const int64_t multiple = up_to(kMost / d + 1) * d;
    check(multiple - 1), check(multiple), check(multiple + up_to(d));
  }
  return fine;
}

void test_divisors() {
  for (uint32_t d = 1; d < 300; ++d)
    for (uint32_t n = 0; n < 70000; ++n) {
      if (abi::divisor_of(d).divide(n) == n / d) continue;
      return fail(cat(n, " / ", d), __FILE__, __LINE__);
    }
  for (uint32_t d = 1; d < 20000; ++d)
    if (!divides_exactly(d)) return fail(cat("by ", d), __FILE__, __LINE__);
  for (int shift = 0; shift < 31; ++shift)
    for (const uint32_t d : {(1u << shift) - 1, 1u << shift, (1u << shift) + 1})
      if (d > 0 && !divides_exactly(d)) return fail(cat("by ", d), __FILE__, __LINE__);
  for (int i = 0; i < 100000; ++i) {
    const uint32_t d = static_cast<uint32_t>(1 + up_to(0x7fffffff));
    if (!divides_exactly(d)) return fail(cat("by ", d), __FILE__, __LINE__);
  }
}

/// store(op1) = load(op0), both by coordinates alone.
Program copy_program(int num_dims, DType from, DType to) {
  Program program;
  program.kind = ProgramKind::kPointwise;
  program.num_dims = num_dims;
  program.num_operands = 2;
  Instr load{.op = Opcode::kLoad, .dtype = from}, store{.op = Opcode::kStore, .dtype = to};
  load.operand = 0;
  store.operand = 1;
  store.a = 0;
  program.instrs = {load, store};
  return program;
}

plan::RunOp op_of(const std::vector<int64_t>& sizes, int64_t tile, const std::vector<std::vector<int64_t>>& strides,
                  const std::vector<int64_t>& offsets, DType from, DType to) {
  plan::RunOp run;
  run.record.kind = abi::TaskKind::kPointwise;
  std::fill(std::begin(run.record.size), std::end(run.record.size), 1);
  std::copy(sizes.begin(), sizes.end(), run.record.size);
  run.record.params.program.num_dims = static_cast<int>(sizes.size());
  run.record.params.program.tile = tile;
  for (size_t i = 0; i < 2; ++i) {
    abi::Operand o{};
    o.slot = static_cast<uint32_t>(i);
    o.dtype = static_cast<short>(i == 0 ? from : to);
    o.vector = static_cast<signed char>(std::min(8, 16 / size_bytes(i == 0 ? from : to)));
    o.index_operand = -1;
    o.offset = offsets[i];
    std::copy(strides[i].begin(), strides[i].end(), o.stride);
    run.operands.push_back(o);
  }
  return run;
}

/// All vectors of all items lie in rows, aligned where they are not scalars.
bool all_whole(const plan::RunOp& run) {
  const abi::ProgramParams& p = run.record.params.program;
  const int last = p.num_dims - 1;
  for (int64_t begin = 0; begin < p.elements; begin += p.tile)
    for (int64_t e = begin; e + p.whole <= std::min<int64_t>(p.elements, begin + p.tile); e += p.whole) {
      int64_t x[abi::kMaxDims] = {}, rest = e;
      for (int d = last; d >= 0; --d) x[d] = rest % run.record.size[d], rest /= run.record.size[d];
      if (x[last] + p.whole > run.record.size[last]) return false;
      for (size_t i = 0; i < run.operands.size(); ++i) {
        const abi::Operand& o = run.operands[i];
        if ((p.scalars >> i & 1) != 0) {
          if (o.stride[last] != 0) return false;
          continue;
        }
        int64_t at = o.offset;
        for (int d = 0; d <= last; ++d) at += x[d] * o.stride[d];
        const int bytes = size_bytes(static_cast<DType>(o.dtype));
        if (o.stride[last] != 1 || at * bytes % std::min(16, p.whole * bytes) != 0) return false;
      }
    }
  return true;
}

void test_random_ops() {
  int whole = 0;
  for (int i = 0; i < 20000; ++i) {
    const int64_t unit = up_to(2) == 0 ? 8 : 4;
    std::vector<int64_t> sizes = {1 + up_to(4), 1 + up_to(5), up_to(4) == 0 ? 1 + up_to(40) : unit * (1 + up_to(6))};
    if (up_to(4) == 0) sizes = {1 + up_to(300)};
    int64_t total = 1;
    for (const int64_t size : sizes) total *= size;
    const int64_t tile = up_to(3) == 0 ? total : up_to(3) == 0 ? 1 + up_to(total) : unit * (1 + up_to(20));
    std::vector<std::vector<int64_t>> strides(2, std::vector<int64_t>(sizes.size()));
    std::vector<int64_t> offsets;
    for (auto& stride : strides) {
      int64_t step = 1;
      for (size_t d = sizes.size(); d-- > 0;) {
        stride[d] = step;
        step *= sizes[d];
        if (d + 1 == sizes.size()) step += up_to(3) == 0 ? up_to(9) : 0;
      }
      offsets.push_back(up_to(4) == 0 ? up_to(9) : 8 * up_to(3));
    }
    if (up_to(4) == 0) strides[0].back() = up_to(3);
    const DType types[] = {DType::kBF16, DType::kF32, DType::kU8, DType::kF64};
    const DType from = types[up_to(4)], to = types[up_to(4)];
    plan::RunOp run = op_of(sizes, tile, strides, offsets, from, to);
    plan::set_pointwise_form(copy_program(static_cast<int>(sizes.size()), from, to), run);
    EXPECT_EQ(run.record.params.program.elements, total);
    if (run.record.params.program.whole == 0) continue;
    ++whole;
    if (!all_whole(run)) return fail(cat("case ", i), __FILE__, __LINE__);
  }
  EXPECT(whole > 2000);
}

abi::ProgramParams form_of(const std::vector<int64_t>& sizes, int64_t tile,
                           const std::vector<std::vector<int64_t>>& strides, const std::vector<int64_t>& offsets,
                           uint32_t slot = 0) {
  plan::RunOp run = op_of(sizes, tile, strides, offsets, DType::kBF16, DType::kBF16);
  run.operands[0].slot = slot;
  plan::set_pointwise_form(copy_program(static_cast<int>(sizes.size()), DType::kBF16, DType::kBF16), run);
  return run.record.params.program;
}

void test_cases() {
  EXPECT_EQ(form_of({4095}, 2048, {{1}, {1}}, {0, 0}).whole, 8);  // what is left over lies in no vector
  EXPECT_EQ(form_of({4095}, 2047, {{1}, {1}}, {0, 0}).whole, 0);
  EXPECT_EQ(form_of({32, 64}, 2048, {{0, 1}, {64, 1}}, {0, 0}).whole, 8);
  EXPECT_EQ(form_of({32, 63}, 2016, {{63, 1}, {63, 1}}, {0, 0}).whole, 0);
  EXPECT_EQ(form_of({32, 64}, 2048, {{65, 1}, {64, 1}}, {0, 0}).whole, 0);
  EXPECT_EQ(form_of({32, 64}, 2048, {{64, 1}, {64, 1}}, {1, 0}).whole, 0);
  EXPECT_EQ(form_of({32, 64}, 2048, {{1, 32}, {64, 1}}, {0, 0}).whole, 0);
  EXPECT_EQ(form_of({32, 64}, 2048, {{64, 1}, {64, 1}}, {0, 0}, abi::kFlagSlot).whole, 0);
  EXPECT_EQ(form_of({1 << 16, 1 << 15}, 2048, {{1 << 15, 1}, {1 << 15, 1}}, {0, 0}).whole, 0);
  const abi::ProgramParams row_value = form_of({32, 64}, 2048, {{1, 0}, {64, 1}}, {0, 0});
  EXPECT_EQ(row_value.whole, 8);
  EXPECT_EQ(row_value.scalars, 1u);
  EXPECT_EQ(form_of({32, 64}, 2048, {{64, 1}, {1, 0}}, {0, 0}).whole, 0);  // stores
}

/// Loads behind a predicate move whole vectors where the plain ones do and their own operand lies like those.
void test_masked() {
  const auto form = [](int64_t offset, int64_t step, uint32_t slot = 0) {
    plan::RunOp run = op_of({32, 64}, 2048, {{64, step}, {64, 1}}, {offset, 0}, DType::kBF16, DType::kBF16);
    run.operands[0].slot = slot;
    Program program = copy_program(2, DType::kBF16, DType::kBF16);
    program.instrs.insert(program.instrs.begin(), Instr{.op = Opcode::kConst, .dtype = DType::kBool});
    program.instrs[1].c = 0, program.instrs[2].a = 1;
    plan::set_pointwise_form(program, run);
    return cat(run.record.params.program.whole, " ", run.record.params.program.masked);
  };
  EXPECT_EQ(form(0, 1), "8 1");
  EXPECT_EQ(form(8, 1), "8 1");
  EXPECT_EQ(form(1, 1), "8 0");
  EXPECT_EQ(form(0, 2), "8 0");
  EXPECT_EQ(form(0, 0), "8 0");
  EXPECT_EQ(form(0, 1, abi::kNoSlot), "8 0");
  EXPECT_EQ(form_of({32, 64}, 2048, {{64, 1}, {64, 1}}, {0, 0}).masked, 1);
  EXPECT_EQ(form_of({32, 63}, 2016, {{63, 1}, {63, 1}}, {0, 0}).masked, 0);
}

}  // namespace

int main() {
  test_masked();
  test_divisors();
  test_random_ops();
  test_cases();
  return result("pointwise form");
}
