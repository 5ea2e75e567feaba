// Norms whose rows have a factor: what is left of the program without it, and what the epilogue multiplies by.
#include "codegen/program_source.h"
#include "codegen/row_factor.h"
#include "cuda_compile/plans.h"
#include "support/check.h"

using namespace ark;
using cuda_compile::ProgramBuilder;

namespace {

struct Norm {
  ProgramBuilder b{ProgramKind::kPrologue, 2, 1, 3};
  int x, squares, inverse;

  explicit Norm(DType dtype = DType::kBF16) : x(b.load(0, dtype)) {
    squares = b.reduce(ReduceOp::kSum, b.op(Opcode::kMul, x, x), DType::kF32);
    inverse = b.op(Opcode::kRsqrt, b.op(Opcode::kAdd, squares, b.constant(1)));
  }
  int yield(int value) {
    Instr i{.op = Opcode::kYield};
    i.a = static_cast<int16_t>(value);
    return b.add(i);
  }
  std::optional<codegen::RowFactor> split() const { return codegen::split_row_factor(b.program); }
};

const Instr& at(const codegen::RowFactor& of, int i) { return of.rest.instrs[static_cast<size_t>(i)]; }

/// x / root, rounded, times a weight, rounded: the product of x and the weight is left, unrounded.
void test_weight() {
  Norm n;
  const int weight = n.b.load(1, DType::kBF16);
  const int divided = n.b.op(Opcode::kCast, n.b.op(Opcode::kMul, n.x, n.inverse), -1, -1, DType::kBF16);
  const int product = n.b.op(Opcode::kMul, weight, divided, -1, DType::kBF16);
  const int yield = n.yield(n.b.op(Opcode::kCast, product, -1, -1, DType::kBF16));
  const auto found = n.split();
  EXPECT(found.has_value());
  EXPECT_EQ(found->factor, n.inverse);
  EXPECT_EQ(int{at(*found, yield).a}, product);
  EXPECT_EQ(int{at(*found, product).a}, weight);
  EXPECT_EQ(int{at(*found, product).b}, n.x);
  EXPECT_EQ(found->squared, n.x);
  EXPECT_EQ(found->weight, weight);
  EXPECT_EQ(found->reduction, n.squares);
  const std::string source = codegen::scaled_program_source(*found, 7);
  const std::string loads_weight = cat("load_operand<V>(c, 1, x, in.r", weight, ");");
  for (const char* part : {"struct ScaledProgram7 {", "kPasses = 1", "kScaled = true, kOfSquares = true",
                           "factor(const Uniform& u)", loads_weight.c_str(), "kWeighted = true"})
    EXPECT(source.find(part) != std::string::npos);
  EXPECT(source.find("element(Pass<1>") == std::string::npos);
}

/// Without a weight, and with the factor on the left.
void test_alone() {
  Norm n;
  const int yield = n.yield(n.b.op(Opcode::kMul, n.inverse, n.x));
  EXPECT_EQ(int{at(*n.split(), yield).a}, n.x);
  EXPECT_EQ(n.split()->squared, n.x);
  EXPECT_EQ(n.split()->weight, -1);
}

/// Nothing for words of two elements: what is made of a weight, elements of 32 bits, other reductions, a weight that is
/// the same along the row.
void test_no_squares() {
  Norm more;
  const int weight = more.b.op(Opcode::kAdd, more.b.load(1, DType::kBF16), more.b.constant(1));
  more.yield(more.b.op(Opcode::kMul, more.b.op(Opcode::kMul, more.x, more.inverse), weight));
  EXPECT_EQ(more.split()->factor, more.inverse);
  EXPECT_EQ(more.split()->squared, -1);
  Norm wide(DType::kF32);
  wide.yield(wide.b.op(Opcode::kMul, wide.x, wide.inverse));
  EXPECT_EQ(wide.split()->squared, -1);
  Norm largest;
  const int top = largest.b.reduce(ReduceOp::kMax, largest.x, DType::kF32);
  largest.yield(largest.b.op(Opcode::kMul, largest.x, largest.b.op(Opcode::kMul, top, largest.inverse)));
  EXPECT(largest.split().has_value());
  EXPECT_EQ(largest.split()->squared, -1);
  Norm same;
  const int one = same.b.load(1, DType::kBF16);
  same.yield(same.b.op(Opcode::kMul, same.b.op(Opcode::kMul, same.x, same.inverse), one));
  const std::string source = codegen::scaled_program_source(*same.split(), 0, {.broadcast = 2});
  EXPECT(source.find("kOfSquares = false") != std::string::npos);
}

/// No factor: a mean that is taken away, a bias, a float16 that could overflow, a row that decides beside its factor,
/// reductions of reductions, more than two, loads by index, and results beside the activation.
void test_none() {
  Norm mean;
  const int sum = mean.b.reduce(ReduceOp::kSum, mean.x, DType::kF32);
  mean.yield(mean.b.op(Opcode::kMul, mean.b.op(Opcode::kSub, mean.x, sum), mean.inverse));
  EXPECT(!mean.split());
  Norm bias;
  bias.yield(bias.b.op(Opcode::kAdd, bias.b.op(Opcode::kMul, bias.x, bias.inverse), bias.b.load(1, DType::kBF16)));
  EXPECT(!bias.split());
  Norm half(DType::kF16);
  const int rounded = half.b.op(Opcode::kCast, half.b.op(Opcode::kMul, half.x, half.inverse), -1, -1, DType::kF16);
  half.yield(rounded);
  EXPECT(!half.split());
  Norm both;
  both.yield(both.b.op(Opcode::kMul, both.inverse, both.b.op(Opcode::kAdd, both.x, both.inverse)));
  EXPECT(!both.split());
  Norm twice;
  const int scaled = twice.b.op(Opcode::kMul, twice.x, twice.inverse);
  const int again = twice.b.reduce(ReduceOp::kSum, scaled, DType::kF32);
  twice.yield(twice.b.op(Opcode::kMul, twice.x, again));
  EXPECT(!twice.split());
  Norm stores;
  const int value = stores.b.op(Opcode::kMul, stores.x, stores.inverse);
  stores.b.store(2, DType::kBF16, value);
  stores.yield(value);
  EXPECT(!stores.split());
  Norm gathers;
  const int row = gathers.b.load(1, DType::kI64);
  gathers.yield(gathers.b.op(Opcode::kMul, gathers.b.load(2, DType::kBF16, row), gathers.inverse));
  EXPECT(!gathers.split());
  Norm many;
  int product = many.inverse;
  for (int i = 0; i < 2; ++i)
    product = many.b.op(Opcode::kMul, product, many.b.reduce(ReduceOp::kMax, many.x, DType::kF32));
  many.yield(many.b.op(Opcode::kMul, many.x, product));
  EXPECT(!many.split());
  Norm plain;
  plain.yield(plain.x);
  EXPECT(!plain.split());
}

}  // namespace

int main() {
  test_weight();
  test_alone();
  test_no_squares();
  test_none();
  return test::result("row_factor");
}
