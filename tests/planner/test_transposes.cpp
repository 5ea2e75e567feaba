// Domains and tiles of pointwise ops that read transposed operands (plan/transposed_operands.h).
#include "plan/transposed_operands.h"
#include "planner/draft.h"
#include "planner/tile/tile.h"
#include "support/graph_builder.h"
#include "support/test_host_util.h"

using namespace ark;
using namespace ark::ir;
using ark::test::expect;
using ark::test::finish;
using ark::test::GraphBuilder;
using ark::test::number;

namespace {

using Sizes = std::vector<int64_t>;

std::string text(const abi::i64* values, int count) {
  std::string result;
  for (int d = 0; d < count; ++d) result += cat(d > 0 ? " " : "", values[d]);
  return result;
}

/// The only op of a sum of inputs with these strides, whose output is contiguous.
struct Sum {
  planner::Draft draft;

  Sum(const Sizes& sizes, const std::vector<Sizes>& inputs, DType dtype = DType::kBF16) {
    GraphBuilder b;
    ValueId total = -1;
    for (const Sizes& own : inputs) {
      const ValueId x = b.input(dtype, sizes);
      std::vector<Size>& strides = b.graph.values[static_cast<size_t>(x)].strides;
      strides.clear();
      for (const int64_t stride : own) strides.push_back(number(stride));
      total = total < 0 ? x : b.pointwise(Opcode::kAdd, {total, x}, dtype, sizes);
    }
    b.graph.outputs.push_back(inputs.size() > 1 ? total : b.pointwise(Opcode::kNeg, {total}, dtype, sizes));
    draft.graph = planner::fuse(b.graph);
    expect(draft.graph.ops.size() == 1, cat(draft.graph.ops.size(), " ops"));
    planner::Options options;
    options.machine.num_workers = 132;
    planner::tile(draft, options);
  }
  const plan::Op& op() const { return draft.graph.ops[0].op; }
  const abi::ProgramParams& params() const { return op().record.params.program; }
  std::string domain() const { return text(op().record.size, params().num_dims); }
  std::string strides(size_t operand) const { return text(op().operands[operand].stride, params().num_dims); }
  uint32_t transposed() const {
    return plan::transposed_operands(op(), draft.graph.programs[static_cast<size_t>(params().program)]);
  }
  int64_t rows_of_tile() const {
    const int64_t row = op().record.size[params().num_dims - 1];
    return params().tile % row == 0 ? params().tile / row : 0;
  }
};

void expect_text(const std::string& got, const std::string& wanted, const std::string& what) {
  expect(got == wanted, cat(what, ": got '", got, "', expected '", wanted, "'"));
}

void the_dimension_read_along_goes_before_the_last() {
  const Sum matrix({128, 96}, {{1, 128}, {96, 1}});
  expect_text(matrix.domain(), "128 96", "a matrix");
  expect(matrix.transposed() == 1, "its first operand");
  const Sum turned({64, 3, 96}, {{1, 64 * 100, 64}});
  expect_text(turned.domain(), "3 64 96", "three dimensions");
  expect_text(turned.strides(0), "6400 1 64", "as it is read");
  expect_text(turned.strides(1), "96 288 1", "as it is written");
  const Sum five({20, 3, 4, 5, 30}, {{1, 20, 60 * 150, 60, 300}});
  expect_text(five.domain(), "3 4 5 20 30", "five dimensions");
  expect(five.transposed() == 1, "all of them kept");
}

void long_rows_are_cut() {
  const Sum whole({4096, 4096}, {{1, 4096}});
  expect_text(whole.domain(), "16 4096 256", "blocks of 256 columns");
  expect_text(whole.strides(0), "1048576 1 4096", "which are rows of what is read");
  expect_text(whole.strides(1), "256 4096 1", "and columns of what is written");
  expect(whole.rows_of_tile() >= 64, cat(whole.rows_of_tile(), " rows"));
  const Sum vectors({4096, 1000}, {{1, 4096}});
  expect_text(vectors.domain(), "5 4096 200", "blocks of whole vectors");
  const Sum odd({4097, 4095}, {{1, 4097}});
  expect_text(odd.domain(), "4097 4095", "rows of no whole vectors");
  expect(odd.rows_of_tile() == 32, cat(odd.rows_of_tile(), " rows of 129 tiles"));
  const Sum few({512, 4095}, {{1, 512}});
  expect_text(few.domain(), "21 512 195", "too few rows for all workers");
  constexpr int64_t kPitch = 1 << 23;
  expect_text(Sum({1024, 512}, {{1, kPitch - 1}}).domain(), "2 1024 256", "a long way from column to column");
  const Sum far({1024, 512}, {{1, kPitch}});
  expect_text(far.domain(), "1024 512", "from block to block more than strides can say");
  for (const abi::Operand& x : far.op().operands)
    for (const abi::i64 stride : x.stride) expect(stride <= INT32_MAX, cat("a stride of ", stride));
}

void rows_come_in_blocks() {
  const auto rows = [](const Sizes& sizes, const Sizes& strides, DType dtype = DType::kBF16) {
    return Sum(sizes, {strides, {sizes.back(), 1}}, dtype).rows_of_tile();
  };
  expect(rows({3001, 769}, {1, 3001}) == 24, "126 tiles of 24 rows: one for each worker");
  expect(rows({769, 3001}, {1, 769}) == 8, "few rows: 97 tiles, though half of a sector is read for others");
  expect(rows({4000, 1021}, {1, 4000}, DType::kF32) == 32, "whole sectors in two turns rather than 8 rows in four");
  const Sum outer({3, 1021, 1019}, {{1021 * 1019, 1, 1021}});
  const int64_t each = outer.rows_of_tile();
  expect(each > 0 && (each & (each - 1)) == 0, "where a tile may have rows of two places: a power of two");
}

void what_is_none() {
  expect(Sum({128, 96}, {{96, 1}}).transposed() == 0, "contiguous");
  expect(Sum({128, 96}, {{1, 0}, {96, 1}}).transposed() == 0, "a column");
  expect(Sum({8, 4096}, {{1, 8}}).transposed() == 0, "few rows");
  expect(Sum({4096, 7}, {{1, 4096}}).transposed() == 0, "few columns");
  expect(Sum({128, 96}, {{2, 256}}).transposed() == 0, "every other element");
}

void tiles_have_room_for_some() {
  const std::vector<Sizes> inputs = {{1, 130}, {1, 140}, {1, 150}, {1, 160}, {96, 1}};
  expect(Sum({128, 96}, inputs).transposed() == 7, "three operands");
  expect(Sum({128, 96}, inputs, DType::kF64).transposed() == 3, "two of 8 bytes");
}

/// Rows of a tile of one of so many copies of odd matrices, transposed, that do not depend on each other.
int64_t rows_beside(int copies) {
  GraphBuilder b;
  for (int i = 0; i < copies; ++i) {
    const ValueId x = b.input(DType::kBF16, {769, 3001});
    b.graph.values[static_cast<size_t>(x)].strides = {number(1), number(769)};
    b.graph.outputs.push_back(b.pointwise(Opcode::kNeg, {x}, DType::kBF16, {769, 3001}));
  }
  planner::Draft draft;
  draft.graph = planner::fuse(b.graph);
  planner::Options options;
  options.machine.num_workers = 132;
  planner::tile(draft, options);
  return draft.graph.ops[0].op.record.params.program.tile / 3001;
}

void test_beside() {
  expect(rows_beside(1) == 8, "alone, every worker has a tile");
  expect(rows_beside(32) >= 32, "where copies fill the workers, tiles read whole lines");
}

}  // namespace

int main() {
  test_beside();
  the_dimension_read_along_goes_before_the_last();
  long_rows_are_cut();
  rows_come_in_blocks();
  what_is_none();
  tiles_have_room_for_some();
  return finish("transposes");
}
