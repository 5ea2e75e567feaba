// Arms of selections that are computed only where an element takes them: which instructions they are.
#include "base/check.h"
#include "codegen/expressions.h"
#include "codegen/lazy_arms.h"
#include "codegen/program_source.h"
#include "cuda_compile/plans.h"
#include "support/check.h"

using namespace ark;
using codegen::RowForm;
using cuda_compile::ProgramBuilder;

namespace {

std::string text(const std::vector<codegen::LazyArm>& arms) {
  std::string out;
  for (const codegen::LazyArm& arm : arms) {
    out += cat("%", arm.selection, arm.taken_if ? " if " : " unless ", arm.value, ":");
    for (const int i : arm.instrs) out += cat(" ", i);
    out += "; ";
  }
  return out;
}

std::string arms_of(const Program& program) {
  return text(codegen::lazy_arms(program, std::vector<bool>(program.instrs.size(), true), [&](int i) {
    return codegen::call_arity(program.instrs[static_cast<size_t>(i)].op) > 0;
  }));
}

/// Where its distance is small, x with noise. `shared`: the noise is stored as well.
ProgramBuilder draw(bool noise_first, bool shared = false) {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 3);
  const int x = b.load(0, DType::kF32), near = b.op(Opcode::kLt, x, b.constant(1), -1, DType::kBool);
  const int noise = b.op(Opcode::kLog, b.op(Opcode::kLog1p, b.op(Opcode::kNeg, x)));
  const int sum = b.op(Opcode::kAdd, x, noise);
  const int drawn = noise_first ? b.op(Opcode::kWhere, near, sum, x) : b.op(Opcode::kWhere, near, x, sum);
  if (shared) b.store(2, DType::kF32, noise);
  b.store(1, DType::kI64, b.reduce(ReduceOp::kArgMax, drawn, DType::kI64), true);
  return b;
}

void arms() {
  EXPECT_EQ(arms_of(draw(true).program), "%7 if 6: 3 4 5 6; ");
  EXPECT_EQ(arms_of(draw(false).program), "%7 unless 6: 3 4 5 6; ");
  EXPECT_EQ(arms_of(draw(true, true).program), "");  // what is left is little
}

/// A condition that is made of the arm is there before it; an arm that is both is no arm.
void shared_values() {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 2);
  const int x = b.load(0, DType::kF32), much = b.op(Opcode::kLog, b.op(Opcode::kLog1p, x));
  const int more = b.op(Opcode::kLog1p, b.op(Opcode::kLog1p, much));
  const int positive = b.op(Opcode::kGt, much, x, -1, DType::kBool);
  b.store(1, DType::kF32, b.op(Opcode::kWhere, positive, more, x));
  EXPECT_EQ(arms_of(b.program), "%6 if 4: 3 4; ");
  ProgramBuilder both(ProgramKind::kRow, 2, 1, 2);
  const int y = both.load(0, DType::kF32), log = both.op(Opcode::kLog1p, both.op(Opcode::kLog1p, y));
  both.store(1, DType::kF32, both.op(Opcode::kWhere, y, log, log));
  EXPECT_EQ(arms_of(both.program), "");
}

/// What only the arm of an inner selection needs is part of the outer arm.
void nested() {
  ProgramBuilder b(ProgramKind::kRow, 2, 1, 2);
  const int x = b.load(0, DType::kF32), log = b.op(Opcode::kLog1p, b.op(Opcode::kLog1p, x));
  const int inner = b.op(Opcode::kWhere, x, log, x);
  b.store(1, DType::kF32, b.op(Opcode::kWhere, x, inner, x));
  EXPECT_EQ(arms_of(b.program), "%4 if 3: 1 2 3; ");
}

void source() {
  const auto printed = [](const ProgramBuilder& b) {
    RowForm form;
    form.vector = 4;
    return codegen::row_program_source(b.program, form, 0, "");
  };
  const std::string one = printed(draw(true)), none = printed(draw(true, true));
  const size_t branch = one.find("if (takes_r6) {"), noise = one.find("op::log1p"), end = one.find("op::where");
  EXPECT(branch < noise && noise < one.find("    }\n", branch) && one.find("    }\n", branch) < end);
  EXPECT(end != std::string::npos && none.find("takes_") == std::string::npos);
}

/// Long elements of rows that a worker has alone: their functions go element by element, those of shorter ones do not.
void in_turn() {
  const auto printed = [](int functions, int threads) {
    ProgramBuilder b(ProgramKind::kRow, 2, 1, 2);
    int value = b.op(Opcode::kRand, b.constant(5, DType::kI64), b.constant(0, DType::kI64), b.index(1));
    for (int i = 0; i < functions; ++i) value = b.op(Opcode::kLog1p, value);
    b.store(1, DType::kF32, b.reduce(ReduceOp::kMax, value), true);
    RowForm form;
    form.vector = 4, form.threads = threads;
    return codegen::row_program_source(b.program, form, 0, "");
  };
  const auto has = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
  const std::string one = printed(2, 256), shorter = printed(1, 256), of_warps = printed(2, 32);
  EXPECT(has(one, "op::in_turn<V>(r3, r4, [](float x)") && has(one, "op::rand_in_turn<V>"));
  EXPECT(!has(one, "ARK_EACH r4[i] = op::log1p"));
  for (const std::string& other : {shorter, of_warps}) EXPECT(!has(other, "in_turn") && has(other, "op::log1p(r3[i])"));
}

}  // namespace

int main() {
  arms();
  shared_values();
  nested();
  source();
  in_turn();
  return ark::test::result("lazy arms");
}
