// planner::fuse: which ops small graphs become. That the ops compute the right thing is
// tests/frontend/test_random_graphs.py's
// matter.
#include <algorithm>

#include "base/unsupported.h"
#include "planner/fuse/affine.h"
#include "planner/fuse/fused.h"
#include "planner/fuse/simplify.h"
#include "support/check.h"
#include "support/model_graph.h"

using namespace ark;
using namespace ark::test;
using abi::TaskKind;
using planner::Access;
using planner::FusedGraph;
using planner::FusedOp;

namespace {

std::string kinds(const FusedGraph& fused) {
  const char* names[] = {"pointwise", "row",     "column", "rows",     "tile",  "float",     "simple",
                         "decode",    "forward", "delta",  "backward", "query", "attention", "range"};
  std::string text;
  for (const FusedOp& op : fused.ops) text += cat(text.empty() ? "" : " ", names[static_cast<int>(op.op.record.kind)]);
  return text;
}

int count(const Program& program, Opcode op) {
  return static_cast<int>(
      std::count_if(program.instrs.begin(), program.instrs.end(), [&](const Instr& i) { return i.op == op; }));
}

const Program& program_of(const FusedGraph& fused, size_t op, size_t which = 0) {
  return fused.programs[static_cast<size_t>(fused.ops[op].op.programs[which])];
}

int num_writes(const FusedOp& op) {
  return static_cast<int>(std::count(op.access.begin(), op.access.end(), Access::kWrite));
}

// ---- coordinates ----

void test_coordinates() {
  using namespace planner;
  const Expr n = dim_expr(0, 512);
  const auto by_head = divide(n, 64);
  EXPECT(by_head.has_value());
  EXPECT_EQ(by_head->quotient.terms[0].div, 64);
  EXPECT_EQ(by_head->remainder.terms[0].mod, 64);
  Expr joined;
  joined.add(by_head->quotient, 64);
  joined.add(by_head->remainder);
  EXPECT(joined == n);
  // [2, 8, 64] permuted to [8, 2, 64]: the linear place of the permuted tensor is (h * 2 + s) * 64 + d
  const Coords place{dim_expr(0, 2), dim_expr(1, 8), dim_expr(2, 64)};
  const std::vector<int64_t> strides{64, 128, 1};
  const auto linear = linearize(place, strides, 0);
  const std::vector<int64_t> sizes{16, 64}, contiguous{64, 1};
  const auto merged = delinearize(*linear, sizes, contiguous);
  EXPECT(merged.has_value());
  EXPECT_EQ((*merged)[0].num_terms, 2);
  // A range that straddles rows is no expression.
  const Coords shifted{dim_expr(0, 10)};
  const std::vector<int64_t> one{1}, two_by_eight{2, 8}, rows{8, 1};
  EXPECT(!delinearize(*linearize(shifted, one, 3), two_by_eight, rows).has_value());
}

void test_simplify() {
  Model m;
  const ValueId x = m.input(kF32, {4, 8});
  const ValueId copy = m.cast(x, kF32), one = m.scalar(kF32, 1);
  const ValueId same = m.binary(Opcode::kMul, copy, one);
  const ValueId a = m.unary(Opcode::kExp, same), b = m.unary(Opcode::kExp, m.view(x, {4, 8}, {8, 1}));
  m.unary(Opcode::kSin, a);  // dead
  m.graph.outputs = {m.binary(Opcode::kAdd, a, b)};
  const ir::Graph simple = planner::simplify(m.graph, 132);
  EXPECT_EQ(simple.nodes.size(), size_t{2});
  EXPECT_EQ(simple.nodes[1].inputs[0], simple.nodes[1].inputs[1]);
}

// ---- pointwise and rows ----

void test_pointwise_chain() {
  Model m;
  const ValueId x = m.input(kF32, {6, 8, 16}), bias = m.input(kF32, {16});
  ValueId y = m.binary(Opcode::kAdd, x, bias);
  y = m.unary(Opcode::kTanh, y);
  const ValueId swapped = m.view(y, {8, 6, 16}, {16, 128, 1});
  const ValueId out = m.cast(swapped, kF32);  // contiguous()
  const FusedGraph fused = m.fuse({out});
  EXPECT_EQ(kinds(fused), "pointwise");
  EXPECT_EQ(num_writes(fused.ops[0]), 1);
  EXPECT_EQ(fused.ops[0].op.operands.size(), size_t{3});
  EXPECT_EQ(int{fused.ops[0].op.operands[0].vector}, 4);
  EXPECT_EQ(fused.fresh.size(), size_t{1});
}

/// A view that splits and merges dimensions cuts the domain instead of needing index registers.
void test_split_domain() {
  Model m;
  const ValueId x = m.input(kF32, {12, 32});
  const ValueId y = m.unary(Opcode::kNeg, x);
  const ValueId heads = m.view(y, {3, 4, 4, 8}, {128, 8, 32, 1});  // [b, h, s, d] of [b * s, h * d]
  const FusedGraph fused = m.fuse({m.unary(Opcode::kAbs, heads)});
  EXPECT_EQ(kinds(fused), "pointwise");
  EXPECT_EQ(count(program_of(fused, 0), Opcode::kIndex), 0);
}

void test_row_ops() {
  Model m;
  const ValueId x = m.input(kBF16, {128, 256}), w = m.input(kBF16, {256});
  const FusedGraph fused = m.fuse({rms_norm(m, x, w)});
  EXPECT_EQ(kinds(fused), "row");
  EXPECT_EQ(fused.ops[0].op.record.params.program.row_size, 256);
  EXPECT_EQ(fused.ops[0].op.record.params.program.num_rows, 128);

  Model s;  // log-softmax, then the label's entry and its sum over the rows
  const ValueId logits = s.input(kF32, {64, 1000}), label = s.input(kI64, {64, 1});
  const ValueId shifted = s.binary(Opcode::kSub, logits, s.reduce(ReduceOp::kMax, logits, {1}, true, kF32));
  const ValueId log_sum =
      s.unary(Opcode::kLog, s.reduce(ReduceOp::kSum, s.unary(Opcode::kExp, shifted), {1}, true, kF32));
  const ValueId log_softmax = s.binary(Opcode::kSub, shifted, log_sum);
  const ValueId picked = s.value(kF32, {64, 1});
  s.node(OpKind::kIndexLoad, {log_softmax, label}, {picked}).attrs.map = {0, -1};
  const FusedGraph loss = s.fuse({s.reduce(ReduceOp::kSum, picked, {0, 1}, false, kF32)});
  EXPECT_EQ(kinds(loss), "row row");
  EXPECT_EQ(count(program_of(loss, 0), Opcode::kReduce), 2);
  const auto& stores = program_of(loss, 0).instrs;
  EXPECT(std::all_of(stores.begin(), stores.end(), [](const Instr& i) { return i.op != Opcode::kStore || i.uniform; }));
}

/// Gradients of a norm's weight and bias: one column op for both sums.
void test_sibling_columns() {
  Model m;
  const ValueId g = m.input(kF32, {512, 64}), x = m.input(kF32, {512, 64});
  const ValueId dw = m.reduce(ReduceOp::kSum, m.binary(Opcode::kMul, g, x), {0}, false, kF32);
  const ValueId db = m.reduce(ReduceOp::kSum, g, {0}, false, kF32);
  const FusedGraph fused = m.fuse({dw, db});
  EXPECT_EQ(kinds(fused), "column");
  EXPECT_EQ(num_writes(fused.ops[0]), 2);
}

// ---- matrix products ----

void test_epilogue() {
  Model m;
  const ValueId x = m.input(kBF16, {512, 256}), w = m.input(kBF16, {1024, 256}), bias = m.input(kF32, {1024});
  const ValueId product = m.matmul(x, m.transposed(w), kF32);
  const ValueId wide_bias = m.cast(m.cast(bias, kBF16), kF32);
  const ValueId saved = m.cast(m.binary(Opcode::kAdd, product, wide_bias), kBF16);
  const ValueId y = m.cast(saved, kF32);
  const ValueId erf = m.unary(Opcode::kErf, m.binary(Opcode::kMul, y, m.scalar(kF32, 0.70710678)));
  const ValueId gelu = m.binary(Opcode::kMul, y, m.binary(Opcode::kAdd, erf, m.scalar(kF32, 1)));
  const FusedGraph fused = m.fuse({saved, m.cast(gelu, kBF16)});
  EXPECT_EQ(kinds(fused), "tile");
  EXPECT_EQ(num_writes(fused.ops[0]), 2);
  EXPECT_EQ(fused.ops[0].op.record.params.matmul.b_k_major, 1);
  EXPECT_EQ(fused.ops[0].op.flops, int64_t{2} * 512 * 256 * 1024);
  Model plain;  // a product that is bf16 is rounded before what follows
  const ValueId p = plain.matmul(plain.input(kBF16, {64, 64}), plain.input(kBF16, {64, 64}), kBF16);
  const FusedGraph rounded = plain.fuse({plain.unary(Opcode::kRelu, p)});
  EXPECT_EQ(count(program_of(rounded, 0), Opcode::kCast), 1);
}

void test_matmul_kinds() {
  auto kind = [](DType type, int64_t rows, int64_t k, int64_t n, bool transposed, bool tensor_cores = true) {
    Model m;
    const ValueId x = m.input(type, {rows, k}), w = transposed ? m.input(type, {n, k}) : m.input(type, {k, n});
    return kinds(m.fuse({m.matmul(x, transposed ? m.transposed(w) : w, type)}, tensor_cores));
  };
  EXPECT_EQ(kind(kBF16, 1, 2048, 512, true), "rows");
  EXPECT_EQ(kind(kBF16, 2, 2048, 512, true), "rows");
  EXPECT_EQ(kind(DType::kF16, 16, 14336, 512, true), "rows");
  EXPECT_EQ(kind(DType::kF16, 16, 28672, 512, true), "tile");  // more windows of k than code is made for
  EXPECT_EQ(kind(kBF16, 8, 28672, 512, true), "rows");
  EXPECT_EQ(kind(kBF16, 17, 2048, 512, true), "tile");
  EXPECT_EQ(kind(kF32, 8, 2048, 512, true), "rows");
  EXPECT_EQ(kind(kF32, 8, 4096, 512, true), "float");  // the activation is too big
  EXPECT_EQ(kind(kF32, 9, 2048, 512, true), "float");
  EXPECT_EQ(kind(kBF16, 4, 256, 512, false), "rows");    // strips of columns
  EXPECT_EQ(kind(kBF16, 4, 252, 512, false), "simple");  // rows of 504 bytes
  EXPECT_EQ(kind(kBF16, 64, 100, 64, true), "simple");   // rows of 200 bytes
  EXPECT_EQ(kind(kF32, 64, 128, 64, true), "float");
  EXPECT_EQ(kind(kF32, 64, 126, 64, true), "simple");  // rows of 504 bytes
  EXPECT_EQ(kind(kBF16, 64, 128, 64, true, false), "simple");
}

/// Loaders of few-row products would take its registers.
void test_no_few_rows_beside_attention_backward() {
  Model m;
  const std::vector<int64_t> s{1, 2, 64, 64};
  const ValueId x = m.input(kBF16, s), lse = m.input(kF32, {1, 2, 64});
  const ValueId dq = m.value(kBF16, s), dk = m.value(kBF16, s), dv = m.value(kBF16, s);
  m.node(OpKind::kAttentionBackward, {x, x, x, x, x, lse}, {dq, dk, dv});
  const ValueId few = m.matmul(m.input(kBF16, {10, 2048}), m.transposed(m.input(kBF16, {512, 2048})), kBF16);
  const FusedGraph fused = m.fuse({dq, dk, dv, few});
  int tiles = 0;
  for (const auto& op : fused.ops) {
    EXPECT(op.op.record.kind != abi::TaskKind::kMatmulRows);
    tiles += op.op.record.kind == abi::TaskKind::kMatmulTile;
  }
  EXPECT_EQ(tiles, 1);
}

/// Whether ten rows are done as few, beside attention of `queries` by `group` heads a kv head and products of `many`
/// rows and of 32.
bool few_beside_attention(int64_t queries, int64_t many_rows, int64_t group = 1, DType type = kBF16) {
  Model m;
  const ValueId q = m.input(type, {1, 2 * group, queries, 64}), kv = m.input(type, {1, 2, 64, 64});
  const ValueId out = m.value(type, {1, 2 * group, queries, 64}), sums = m.value(kF32, {1, 2 * group, queries});
  m.node(OpKind::kAttention, {q, kv, kv}, {out, sums});
  const ValueId weight = m.transposed(m.input(kBF16, {4096, 4096}));
  const ValueId many = m.matmul(m.input(kBF16, {many_rows, 4096}), weight, kBF16),
                some = m.matmul(m.input(kBF16, {32, 4096}), weight, kBF16);
  const ValueId few = m.matmul(m.input(kBF16, {10, 2048}), m.transposed(m.input(kBF16, {512, 2048})), kBF16);
  const FusedGraph fused = m.fuse({out, many, some, few});
  return std::ranges::any_of(fused.ops, [](const auto& op) { return op.op.record.kind == abi::TaskKind::kMatmulRows; });
}
/// They must be worth a thousandth of the time, which 2 MB are beside 17 GFLOP, and not beside 550, whatever products
/// of 32 rows read.
void test_few_rows_beside_attention() {
  EXPECT(few_beside_attention(64, 512));
  EXPECT(!few_beside_attention(64, 16384));
  EXPECT(few_beside_attention(1, 16384));  // decode attention has no main loop on the tensor cores
  EXPECT(!few_beside_attention(8, 16384, 4));
  EXPECT(few_beside_attention(64, 16384, 1, kF32));  // nor has fp32's
}

/// Gradients of logits over an odd vocabulary: the intermediate gets padded rows and TMA reads it for both products.
void test_padded_rows(DType type, const std::string& wanted, int64_t row) {
  Model m;
  const ValueId logits = m.input(type, {512, 1003}), w = m.input(type, {1003, 64}), h = m.input(type, {512, 64});
  const ValueId gradient = m.unary(Opcode::kNeg, logits);
  const ValueId dh = m.matmul(gradient, w, type);
  const ValueId dw = m.matmul(m.transposed(gradient), h, type);
  const FusedGraph fused = m.fuse({dh, dw});
  EXPECT_EQ(kinds(fused), wanted);
  EXPECT_EQ(fused.ops[1].op.operands[0].stride[1], row);
}

// ---- a decode step ----

void test_decode_step() {
  auto [m, x] = decode_step();
  const FusedGraph fused = m.fuse({x});
  EXPECT_EQ(kinds(fused),
            "rows pointwise range decode rows rows rows "
            "rows decode rows rows rows rows decode rows rows rows pointwise");
  const auto& qkv = fused.ops[0].op.record.params.rows;
  EXPECT_EQ(qkv.num_segments, 3);
  EXPECT_EQ(qkv.pair_distance, 32);
  EXPECT_EQ(qkv.lanes, 2);
  EXPECT_EQ(qkv.num_units, (kHeads + 2 * kKvHeads) * kDim / 2);
  // The caches are written where they are, by qkv, and nowhere else.
  for (const FusedOp& op : fused.ops) {
    int updates = static_cast<int>(std::count(op.access.begin(), op.access.end(), Access::kReadWrite));
    EXPECT_EQ(updates,
              op.op.record.kind == TaskKind::kMatmulRows && op.op.record.params.rows.num_segments == 3 ? 2 : 0);
  }
  // Its parts are combined by the projection.
  EXPECT_EQ(fused.ops[3].op.record.params.attention.parts, 4);
  EXPECT_EQ(count(program_of(fused, 4), Opcode::kLoadParts), 1);
  const auto& gated = fused.ops[5].op.record.params.rows;
  EXPECT_EQ(gated.gated, 1);
  EXPECT_EQ(gated.num_segments, 1);
  // Equal layers share programs: qkv's prologue and three epilogues, projection's two, gate's, down's, mask, position.
  EXPECT(fused.programs.size() <= 12);
  EXPECT(fused.storages[0].immutable);
  EXPECT(!fused.storages[1].immutable);
}

// ---- inputs that are overwritten, outputs ----

/// a, b = b * 2, a + 1: each needs the other's old value.
void test_exchanged_inputs() {
  Model m;
  const ValueId a = m.input(kF32, {32}), b = m.input(kF32, {32});
  m.copy_to(a, m.binary(Opcode::kMul, b, m.scalar(kF32, 2)));
  m.copy_to(b, m.binary(Opcode::kAdd, a, m.scalar(kF32, 1)));
  const FusedGraph fused = m.fuse({});
  EXPECT_EQ(kinds(fused), "pointwise");  // element by element, loads before stores
  EXPECT_EQ(num_writes(fused.ops[0]), 2);

  Model flipped;  // a = a transposed: not at the same place, so through memory
  const ValueId square = flipped.input(kF32, {8, 8});
  flipped.copy_to(square, flipped.unary(Opcode::kNeg, flipped.view(square, {8, 8}, {1, 8})));
  EXPECT_EQ(kinds(flipped.fuse({})), "pointwise pointwise");
}

void test_outputs() {
  Model m;
  const ValueId x = m.input(kF32, {4, 8});
  const ValueId y = m.unary(Opcode::kNeg, x);
  const ValueId row = m.view(y, {8}, {1}, 8), part = m.view(x, {4, 4}, {8, 1}, 4);
  const FusedGraph fused = m.fuse({row, y, part, x});
  EXPECT_EQ(fused.fresh.size(), size_t{1});
  EXPECT(!fused.outputs[0].whole && fused.outputs[0].fresh == 0 && fused.outputs[0].offset == 8);
  EXPECT(fused.outputs[1].whole && fused.outputs[1].fresh == 0);
  EXPECT(!fused.outputs[2].whole && fused.outputs[2].input == 0 && fused.outputs[2].offset == 4);
  EXPECT(fused.outputs[3].whole && fused.outputs[3].input == 0);
}

void test_scatter() {
  Model m;  // rows that were chosen, of distinct numbers: a copy, then the stores
  const ValueId table = m.input(kF32, {16, 8}), rows = m.input(kF32, {3, 8}), index = m.input(kI64, {3, 1});
  const FusedGraph fused = m.fuse({m.index_store(table, rows, index, {-1, 1})});
  EXPECT_EQ(kinds(fused), "pointwise pointwise");
  Model one;  // a single row: a select
  const ValueId t = one.input(kF32, {16, 8}), r = one.input(kF32, {1, 8}), i = one.input(kI64, {1, 1});
  EXPECT_EQ(kinds(one.fuse({one.unary(Opcode::kExp, one.index_store(t, r, i, {-1, 1}))})), "pointwise");
}

void test_no_elements() {
  Model sum;
  const FusedGraph fused = sum.fuse({sum.reduce(ReduceOp::kSum, sum.input(kF32, {0, 4}), {0}, false, kF32)});
  EXPECT_EQ(fused.ops.size(), size_t{1});
  EXPECT_EQ(count(program_of(fused, 0), Opcode::kLoad), 0);  // there is nothing to read
  EXPECT_EQ(num_writes(fused.ops[0]), 1);
  Model largest;
  const ValueId x = largest.input(kF32, {0, 4});
  const ValueId max = largest.reduce(ReduceOp::kMax, x, {0}, true, kF32);
  EXPECT_THROW(UnsupportedError, largest.fuse({max}), "max of no elements");
  Model softmax;  // only what has no elements reads the maximum
  const ValueId y = softmax.input(kF32, {0, 4});
  softmax.fuse({softmax.binary(Opcode::kSub, y, softmax.reduce(ReduceOp::kMax, y, {0}, true, kF32))});
}

/// Which node an error blames is a field of it: other names may be in its text too.
void test_blamed_node() {
  Model m;
  const ValueId x = m.input(kF32, {0, 4}), y = m.input(kF32, {3, 4});
  const ValueId other = m.unary(Opcode::kExp, y);
  m.graph.nodes.back().name = "max";
  const ValueId refused = m.reduce(ReduceOp::kMax, x, {0}, true, kF32);
  m.graph.nodes.back().name = "refused";
  try {
    m.fuse({other, refused});
    EXPECT(false);
  } catch (const NodeUnsupported& error) {
    EXPECT_EQ(error.node, "refused");
    EXPECT_EQ(std::string(error.what()), "node 'refused': max of no elements");
  }
  Model product;  // an op is refused with the node that it is named after
  const ValueId a = product.input(kF32, {64, 64}), b = product.input(kF32, {64, 64});
  const ValueId sums = product.matmul(a, b, kF32);
  product.graph.nodes.back().name = "mm";
  const ValueId out = product.unary(Opcode::kExp, sums);
  product.graph.nodes.back().name = "exp";
  const FusedGraph fused = product.fuse({out});
  EXPECT_EQ(fused.ops.back().op.name, "mm+exp");
  EXPECT_EQ(fused.ops.back().op.node, "mm");
}

void test_unsupported() {
  Model m;
  const std::vector<int64_t> s{1, 2, 64, 64};
  const ValueId x = m.input(kF32, s), lse = m.input(kF32, {1, 2, 64});
  const ValueId dq = m.value(kF32, s), dk = m.value(kF32, s), dv = m.value(kF32, s);
  m.node(OpKind::kAttentionBackward, {x, x, x, x, x, lse}, {dq, dk, dv});
  EXPECT_THROW(UnsupportedError, m.fuse({dq, dk, dv}), "only bf16 and f16");
}

}  // namespace

int main() {
  test_coordinates();
  test_simplify();
  test_pointwise_chain();
  test_split_domain();
  test_row_ops();
  test_sibling_columns();
  test_epilogue();
  test_matmul_kinds();
  test_no_few_rows_beside_attention_backward();
  test_few_rows_beside_attention();
  test_padded_rows(kBF16, "pointwise tile tile", 1008);
  test_padded_rows(kF32, "pointwise float float", 1004);
  test_decode_step();
  test_exchanged_inputs();
  test_outputs();
  test_scatter();
  test_no_elements();
  test_blamed_node();
  test_unsupported();
  return result("test_fuse");
}
