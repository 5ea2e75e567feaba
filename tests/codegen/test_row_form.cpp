// How the threads of a worker share rows, by the rows' length (codegen/row_form.h).
#include <string>

#include "base/check.h"
#include "codegen/choose_row_form.h"
#include "support/check.h"

using namespace ark;
using namespace ark::test;
using codegen::RowForm;

namespace {

/// y = x / sum(x) along the row.
Program normalized(DType type) {
  Program p;
  p.kind = ProgramKind::kRow;
  p.num_dims = 2, p.reduce_dims = 1, p.num_operands = 2;
  Instr load{.op = Opcode::kLoad, .dtype = type}, sum{.op = Opcode::kReduce, .dtype = DType::kF32};
  Instr divide{.op = Opcode::kDiv, .dtype = DType::kF32}, store{.op = Opcode::kStore, .dtype = type};
  load.operand = 0;
  sum.a = 0, sum.aux = static_cast<int16_t>(ReduceOp::kSum);
  divide.a = 0, divide.b = 1;
  store.operand = 1, store.a = 2;
  p.instrs = {load, sum, divide, store};
  return p;
}

plan::Op rows_of(DType type, int64_t rows, int64_t length, int64_t tile = 64) {
  plan::Op op;
  op.name = cat(rows, " x ", length);
  op.record.kind = abi::TaskKind::kRow;
  op.record.size[0] = static_cast<int>(rows), op.record.size[1] = static_cast<int>(length);
  abi::ProgramParams& p = op.record.params.program;
  p.num_dims = 2, p.reduce_dims = 1, p.num_rows = rows, p.row_size = length, p.tile = tile;
  op.operands.resize(2);
  for (abi::Operand& o : op.operands) {
    o.dtype = static_cast<short>(type);
    o.stride[0] = length, o.stride[1] = 1;
    const int64_t whole = 16 / size_bytes(type);
    o.vector = static_cast<signed char>(length % whole == 0 ? whole : 1);
    o.index_operand = -1;
  }
  return op;
}

RowForm form_of(DType type, int64_t length, int64_t tile = 64) {
  const plan::Op op = rows_of(type, 40000, length, tile);
  return codegen::row_form(normalized(type), {&op});
}

/// A lane has at most five vectors of a row; several rows where it has one or two.
void test_lanes() {
  struct Case {
    int64_t length;
    int threads, chunks, rows;
    bool full;
  };
  for (const Case& c :
       {Case{8, 4, 1, 4, false}, Case{32, 4, 1, 4, true}, Case{64, 8, 1, 4, true}, Case{72, 4, 3, 1, false},
        Case{128, 8, 2, 2, true}, Case{200, 8, 4, 1, false}, Case{256, 8, 4, 1, true}, Case{320, 8, 5, 1, true},
        Case{384, 16, 3, 1, true}, Case{640, 16, 5, 1, true}, Case{768, 32, 3, 1, true}, Case{1024, 32, 4, 1, true}}) {
    const RowForm form = form_of(DType::kBF16, c.length);
    const std::string got = cat(form.threads, " threads, ", form.chunks, " chunks, ", form.rows, " rows, ", form.full);
    EXPECT_EQ(got, cat(c.threads, " threads, ", c.chunks, " chunks, ", c.rows, " rows, ", c.full));
  }
  const plan::Op heads = rows_of(DType::kBF16, 16, 128, 8);  // of a token
  const RowForm of_few = codegen::row_form(normalized(DType::kBF16), {&heads});
  EXPECT_EQ(cat(of_few.threads, " ", of_few.chunks, " ", of_few.rows), "16 1 1");
  const plan::Op many_heads = rows_of(DType::kBF16, 4096, 128, 8);  // 32 rows a worker, a row for each eight threads
  EXPECT_EQ(codegen::row_form(normalized(DType::kBF16), {&many_heads}).threads, 8);
  EXPECT_EQ(codegen::row_form(normalized(DType::kBF16), {&many_heads}).rows, 1);
  EXPECT_EQ(form_of(DType::kF32, 64).threads, 8);  // 16 vectors
  EXPECT_EQ(form_of(DType::kF32, 64).rows, 2);
}

/// x * w + y: operands of a row op whose rows begin at `stride`, `w` the same for all rows.
RowForm weighted_form(int64_t length, int64_t stride_of_x, int64_t stride_of_y) {
  Program p = normalized(DType::kBF16);
  p.num_operands = 3;
  Instr weight = p.instrs[0];
  weight.operand = 2;
  p.instrs.insert(p.instrs.begin() + 1, weight);
  p.instrs[2].a = 1;  // the weights' sum
  p.instrs[3].a = 0, p.instrs[3].b = 2;
  p.instrs[4].a = 3;
  plan::Op op = rows_of(DType::kBF16, 10000, length);
  op.operands.push_back(op.operands[0]);
  op.operands[0].stride[0] = stride_of_x, op.operands[1].stride[0] = stride_of_y, op.operands[2].stride[0] = 0;
  return codegen::row_form(p, {&op});
}

/// Rows off alignment keep their whole vectors and the elements beside them; loads that are off by another number are
/// shifted.
void test_off_alignment() {
  const RowForm alike = form_of(DType::kBF16, 197);
  EXPECT(alike.edges && alike.vector_operands == 3u && alike.vector == 8);
  EXPECT_EQ(cat(alike.threads, " ", alike.chunks, " ", alike.edge_elements), std::string("8 3 2"));  // 24 vectors
  EXPECT(!alike.full && alike.ahead_operands == 1u);
  EXPECT(codegen::row_form_serves(alike, rows_of(DType::kBF16, 77, 199)));
  EXPECT(!codegen::row_form_serves(alike, rows_of(DType::kBF16, 77, 201)));  // 25 vectors
  EXPECT_EQ(alike.sure, 2);                                                  // 23 vectors of eight threads at least
  EXPECT(codegen::row_form_serves(alike, rows_of(DType::kBF16, 77, 135)));
  EXPECT(!codegen::row_form_serves(alike, rows_of(DType::kBF16, 77, 133)));  // perhaps 15
  const plan::Op first = rows_of(DType::kBF16, 77, 197), second = rows_of(DType::kBF16, 77, 77);
  const RowForm two = codegen::row_form(normalized(DType::kBF16), {&first, &second});
  EXPECT_EQ(two.sure, 0);
  EXPECT(codegen::row_form_serves(two, rows_of(DType::kBF16, 77, 15)));
  EXPECT(!codegen::row_form_serves(two, rows_of(DType::kBF16, 77, 13)));  // perhaps none
  const RowForm shifted = weighted_form(197, 197, 197), both = weighted_form(197, 203, 197);
  EXPECT(shifted.edges && shifted.chunks > 0 && shifted.vector_operands == 3u && shifted.shifted_operands == 4u);
  EXPECT(both.edges && both.chunks > 0 && both.vector_operands == 2u);  // that it stores to
  plan::Op sparse = rows_of(DType::kBF16, 77, 197);
  sparse.operands.push_back(sparse.operands[0]);
  EXPECT(both.standing_operands == 4u && shifted.standing_operands == 4u);  // the same for all rows
  EXPECT(!codegen::row_form_serves(both, sparse));                          // not of this op
  sparse.operands[2].stride[0] = 0;
  EXPECT(codegen::row_form_serves(both, sparse));
  sparse.operands[2].stride[1] = 2;
  EXPECT(!codegen::row_form_serves(both, sparse));
  const RowForm streamed = form_of(DType::kBF16, 30001);
  EXPECT(streamed.edges && streamed.chunks == 0);
  const RowForm long_rows = weighted_form(30001, 30003, 30001);  // only kept rows can be shifted
  EXPECT(!long_rows.edges && long_rows.vector == 1);
}

/// Aligned rows whose last vectors some threads do not have: shorter ones of whole vectors fit, rows of none do not.
void test_aligned_edges() {
  const auto rows = [](int64_t length) { return rows_of(DType::kBF16, 40000, length); };
  const RowForm form = form_of(DType::kBF16, 1000);
  EXPECT(form.edges && form.multiples && form.vector == 8);
  EXPECT_EQ(cat(form.threads, " ", form.chunks, " ", form.edge_elements, " ", form.sure), "32 4 0 3");
  for (const int64_t length : {768, 1000, 1024}) EXPECT(codegen::row_form_serves(form, rows(length)));
  for (const int64_t length : {0, 8, 760, 1004, 1032}) EXPECT(!codegen::row_form_serves(form, rows(length)));
  const RowForm few = form_of(DType::kBF16, 200 * 8, 1);  // threads of a whole worker that have one vector or none
  EXPECT(few.edges && few.multiples);
  EXPECT_EQ(cat(few.threads, " ", few.chunks, " ", few.sure), "256 1 0");
  for (const int64_t length : {8, 16, 1600, 2048})
    EXPECT(codegen::row_form_serves(few, rows_of(DType::kBF16, 40000, length, 1)));
  for (const int64_t length : {0, 4, 12, 2056})
    EXPECT(!codegen::row_form_serves(few, rows_of(DType::kBF16, 40000, length, 1)));
  const RowForm streamed = form_of(DType::kBF16, 65536, 1);  // in loops, which may have no turn
  EXPECT(streamed.chunks == 0 && codegen::row_form_serves(streamed, rows_of(DType::kBF16, 40000, 0, 1)));
}

/// What all rows have in common is kept where there are registers for it in all passes.
void test_common_operands() {
  Program p = normalized(DType::kF32);  // of x + bias
  p.num_operands = 3;
  Instr bias = p.instrs[0], sum{.op = Opcode::kAdd, .dtype = DType::kF32};
  bias.operand = 2;
  sum.a = 0, sum.b = 1;
  p.instrs.insert(p.instrs.begin() + 1, {bias, sum});
  p.instrs[3].a = 2, p.instrs[4].a = 2, p.instrs[4].b = 3, p.instrs[5].a = 4;
  const auto form = [&](int64_t vectors, int64_t stride) {  // of 256 threads
    plan::Op op = rows_of(DType::kF32, 4096, vectors * 1024, 1);
    op.operands.push_back(op.operands[0]);
    op.operands[2].stride[0] = stride;
    const RowForm f = codegen::row_form(p, {&op});
    return cat(f.threads, " ", f.chunks, " ", f.ahead_operands, " ", f.standing_operands);
  };
  EXPECT_EQ(form(11, 0), "256 11 1 4");  // three times 44 registers: x of the next row, the sums, the bias
  EXPECT_EQ(form(12, 0), "256 12 1 0");
  EXPECT_EQ(form(11, 11 * 1024), "256 11 5 0");  // a row of its own for each
}

/// Rows off alignment are shared as aligned ones of as many whole vectors; very short ones have shorter vectors.
void test_edges() {
  struct Case {
    DType type;
    int64_t length;
    const char* form;
  };
  for (const Case& c :
       {Case{DType::kBF16, 5, "2 x 1 + 1, 4 threads, 4 rows"}, Case{DType::kBF16, 9, "4 x 1 + 2, 4 threads, 4 rows"},
        Case{DType::kBF16, 65, "8 x 1 + 2, 8 threads, 4 rows"}, Case{DType::kBF16, 127, "8 x 2 + 2, 8 threads, 2 rows"},
        Case{DType::kBF16, 129, "8 x 2 + 2, 8 threads, 2 rows"},
        Case{DType::kBF16, 257, "8 x 4 + 2, 8 threads, 1 rows"}, Case{DType::kF16, 321, "8 x 5 + 2, 8 threads, 1 rows"},
        Case{DType::kBF16, 513, "8 x 4 + 1, 16 threads, 1 rows"},
        Case{DType::kBF16, 769, "8 x 3 + 1, 32 threads, 1 rows"},
        Case{DType::kBF16, 1001, "8 x 4 + 1, 32 threads, 1 rows"},
        Case{DType::kF32, 129, "4 x 4 + 1, 8 threads, 1 rows"},
        Case{DType::kF32, 321, "4 x 5 + 1, 16 threads, 1 rows"}}) {
    const RowForm f = form_of(c.type, c.length);
    EXPECT(f.edges);
    EXPECT_EQ(cat(f.vector, " x ", f.chunks, " + ", f.edge_elements, ", ", f.threads, " threads, ", f.rows, " rows"),
              std::string(c.form));
  }
  plan::Op twelve = rows_of(DType::kBF16, 10000, 12);
  for (abi::Operand& o : twelve.operands) o.vector = 4;
  EXPECT(!codegen::row_form(normalized(DType::kBF16), {&twelve}).edges);  // vectors of four are aligned
  EXPECT_EQ(form_of(DType::kBF16, 1).vector, 1);
  EXPECT_EQ(form_of(DType::kBF16, 1).vector_operands, 0u);
}

/// A tile of few rows keeps its warps together.
void test_few_rows() {
  EXPECT_EQ(form_of(DType::kBF16, 64, 2).threads, 128);
  EXPECT_EQ(form_of(DType::kBF16, 64, 1).threads, 256);
  EXPECT_EQ(form_of(DType::kBF16, 64, 1).rows, 1);
}

/// A worker with one row has no code for a second one, and then serves no more rows; of a warp's rows there may be any
/// number.
void test_one_turn() {
  const auto form = [](int64_t rows, int64_t tile) {
    const plan::Op op = rows_of(DType::kBF16, rows, 2048, tile);
    return codegen::row_form(normalized(DType::kBF16), {&op});
  };
  EXPECT(form(64, 1).one_turn && form(128, 1).one_turn);
  EXPECT(!form(300, 1).one_turn && !form(64, 8).one_turn);
  EXPECT(codegen::row_form_serves(form(64, 1), rows_of(DType::kBF16, 132, 2048, 1)));
  EXPECT(!codegen::row_form_serves(form(64, 1), rows_of(DType::kBF16, 300, 2048, 1)));
  EXPECT(codegen::row_form_serves(form(300, 1), rows_of(DType::kBF16, 64, 2048, 1)));
}

/// Rows of no more elements than threads have one each, whatever their alignment.
void test_elements() {
  for (const int64_t length : {117, 256}) {
    const RowForm form = form_of(DType::kF32, length, 1);
    EXPECT_EQ(cat(form.threads, " ", form.vector, " ", form.chunks, " ", form.edges), "256 1 1 0");
  }
  EXPECT_EQ(form_of(DType::kF32, 260, 1).vector, 4);
  EXPECT_EQ(form_of(DType::kF32, 116).vector, 4);  // a warp's
}

/// Rows of a table by numbers that another table holds: y = table[numbers[i]] less its sum along the row.
Program of_gathered_numbers() {
  Program p = normalized(DType::kBF16);
  p.num_operands = 6;
  Instr index{.op = Opcode::kLoad, .dtype = DType::kI64}, number = index, row = p.instrs[0];
  index.operand = 2;
  number.operand = 4, number.a = 0;
  row.operand = 0, row.a = 1;
  p.instrs[1].a = 2, p.instrs[2].a = 2, p.instrs[2].b = 3, p.instrs[3].a = 4;
  p.instrs.erase(p.instrs.begin());
  p.instrs.insert(p.instrs.begin(), {index, number, row});
  return p;
}

/// Numbers that are the same for a row are read once, and the row that they name is kept; others are read element by
/// element in each pass.
void test_gathered_numbers() {
  plan::Op op = rows_of(DType::kBF16, 40000, 1024);
  op.operands.resize(6, op.operands[0]);
  op.operands[0].stride[0] = 0, op.operands[0].index_operand = 5;
  for (const int i : {2, 4}) op.operands[i].dtype = static_cast<short>(DType::kI64), op.operands[i].stride[1] = 0;
  op.operands[2].stride[0] = 1;
  op.operands[4].stride[0] = 0, op.operands[4].index_operand = 3;
  const RowForm same = codegen::row_form(of_gathered_numbers(), {&op});
  EXPECT_EQ(cat(same.same_gathers, " ", same.threads, " ", same.chunks, " x ", same.vector), "16 32 4 x 8");
  EXPECT(codegen::row_form_serves(same, op));
  op.operands[4].stride[1] = 1;
  EXPECT(!codegen::row_form_serves(same, op));
  const RowForm other = codegen::row_form(of_gathered_numbers(), {&op});
  EXPECT_EQ(cat(other.same_gathers, " ", other.chunks), "0 0");
}

/// log1p(log1p(..x)) less its sum along the row.
Program of_long_functions(int functions) {
  Program p = normalized(DType::kBF16);
  Instr log1p{.op = Opcode::kLog1p, .dtype = DType::kF32}, load = p.instrs[0], sum = p.instrs[1], store = p.instrs[3];
  const int16_t last = static_cast<int16_t>(functions);
  p.instrs = {load};
  for (int16_t i = 0; i < last; ++i) log1p.a = i, p.instrs.push_back(log1p);
  Instr less{.op = Opcode::kSub, .dtype = DType::kF32};
  sum.a = less.a = last, less.b = last + 1, store.a = last + 2;
  p.instrs.insert(p.instrs.end(), {sum, less, store});
  return p;
}

/// Code of long functions is short vectors, in a loop if a thread has several.
void test_long_functions() {
  const auto form = [](int functions, int64_t length, int64_t tile) {
    const plan::Op op = rows_of(DType::kBF16, 10000, length, tile);
    const RowForm f = codegen::row_form(of_long_functions(functions), {&op});
    return cat(f.threads, " threads, ", f.chunks, " x ", f.vector, f.in_turn ? " in turn" : "");
  };
  EXPECT_EQ(form(1, 8016, 1), "256 threads, 4 x 8");
  EXPECT_EQ(form(2, 8016, 1), "256 threads, 4 x 8 in turn");
  EXPECT_EQ(form(2, 1096, 1), "256 threads, 1 x 8");
  EXPECT_EQ(form(2, 640, 64), "16 threads, 5 x 8 in turn");
  EXPECT_EQ(form(3, 8016, 1), "256 threads, 8 x 4 in turn");
  EXPECT_EQ(form(3, 1096, 1), "256 threads, 2 x 4 in turn");
  EXPECT_EQ(form(3, 1024, 1), "256 threads, 1 x 4");
}

/// Code for rows of several lengths serves shorter ones, not longer ones.
void test_other_lengths() {
  const plan::Op first = rows_of(DType::kBF16, 10000, 64), second = rows_of(DType::kBF16, 500, 104);
  const RowForm both = codegen::row_form(normalized(DType::kBF16), {&first, &second});
  EXPECT(!both.full && both.ahead_operands == 0);
  EXPECT_EQ(both.threads, 8);
  EXPECT_EQ(both.chunks, 2);
  for (const int64_t length : {8, 64, 104, 128})
    EXPECT(codegen::row_form_serves(both, rows_of(DType::kBF16, 3000, length)));
  EXPECT(!codegen::row_form_serves(both, rows_of(DType::kBF16, 3000, 136)));
  EXPECT(!codegen::row_form_serves(both, rows_of(DType::kBF16, 3000, 64, 2)));  // needs more threads
  EXPECT(codegen::row_form_serves(form_of(DType::kBF16, 64), rows_of(DType::kBF16, 77, 64)));
  EXPECT(!codegen::row_form_serves(form_of(DType::kBF16, 64), rows_of(DType::kBF16, 77, 56)));
}

}  // namespace

int main() {
  test_lanes();
  test_off_alignment();
  test_aligned_edges();
  test_common_operands();
  test_edges();
  test_few_rows();
  test_one_turn();
  test_elements();
  test_gathered_numbers();
  test_long_functions();
  test_other_lengths();
  return result("row form");
}
