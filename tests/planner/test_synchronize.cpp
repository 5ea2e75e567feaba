// Waits and arrivals: nothing races, row blocks wait for their own row blocks only, implied waits are gone.
#include "planner/order/order_ops.h"
#include "planner/order/synchronize.h"
#include "planner/tile/tile.h"
#include "support/fused_builder.h"
#include "support/plan_oracle.h"
#include "support/sample_graphs.h"

using namespace ark;
using namespace ark::test;

namespace {

planner::Draft synchronized(Builder& builder, planner::Options options = {}) {
  planner::Draft draft;
  draft.graph = std::move(builder.graph);
  planner::tile(draft, options);
  planner::synchronize(draft, options);
  return draft;
}

const abi::OpRecord& record(const planner::Draft& draft, const std::string& name) {
  for (const FusedOp& op : draft.graph.ops) {
    if (op.op.name == name) return op.op.record;
  }
  std::abort();
}
int index(const planner::Draft& draft, const std::string& name) {
  for (size_t i = 0; i < draft.graph.ops.size(); ++i) {
    if (draft.graph.ops[i].op.name == name) return static_cast<int>(i);
  }
  std::abort();
}

void test_encoder(int64_t batch, int64_t seq) {
  Builder b = encoder({.batch = batch, .seq = seq});
  const planner::Draft draft = synchronized(b);
  const std::string what = cat("encoder ", batch, " x ", seq, ": ");
  const Oracle oracle(draft);
  expect_equal(oracle.races(), 0, what + "races");
  for (const FusedOp& op : draft.graph.ops) {
    expect(op.op.record.num_waits <= 1, cat(what, op.op.name, " has ", op.op.record.num_waits, " waits"));
  }
  const double blocks = static_cast<double>((batch * seq + 127) / 128);
  for (const auto& [op, before] : {std::pair{"ffn2", "ffn1"}, {"norm2", "proj"}, {"qkv", "norm1"}, {"ffn1", "norm2"}}) {
    const double fraction = oracle.fraction_awaited(index(draft, op), index(draft, before));
    expect(fraction < 2.2 / blocks + 0.02,
           cat(what, op, " waits for ", fraction, " of ", before, ", row blocks: ", blocks));
  }
  if (seq % 128 == 0) {
    // ffn2's tile (batch, m, n) waits for the row block m of ffn1: all n blocks of it arrived
    const abi::Wait& wait = record(draft, "ffn2").wait[0];
    expect(wait.coef[0] == 0 && wait.coef[1] == 1 && wait.coef[2] == 0, what + "ffn2 waits by row block");
    expect(wait.extent == 1 && wait.div == 1 && wait.base == 0, what + "ffn2 waits for one row block");
    expect_equal(wait.target, static_cast<uint32_t>(record(draft, "ffn1").grid[2]), what + "target");
  }
  // attention: its batch's rows of qkv only
  const double fraction = oracle.fraction_awaited(index(draft, "attention"), index(draft, "qkv"));
  expect(fraction < 1.0 / static_cast<double>(batch) + 1.0 / blocks + 0.01,
         cat(what, "attention waits for ", fraction, " of qkv"));
}

void test_sequential() {
  Builder b = encoder({.batch = 2, .seq = 256});
  planner::Options options;
  options.schedule = planner::Schedule::kSequential;
  const planner::Draft draft = synchronized(b, options);
  const Oracle oracle(draft);
  expect_equal(oracle.races(), 0, "sequential: races");
  for (size_t i = 1; i < draft.graph.ops.size(); ++i) {
    expect_equal(oracle.fraction_awaited(static_cast<int>(i), static_cast<int>(i) - 1), 1.0,
                 "sequential: waits for the op before");
    expect_equal(draft.graph.ops[i].op.record.num_waits, 1, "sequential: waits");
  }
}

/// q, k and v as three segments of one op, pairs of columns 32 apart; decode attention reads its kv head's.
void test_decode() {
  Builder b;
  const int64_t width = 512, kv = 128;  // 8 heads, 2 kv heads of 64
  auto x = b.input("x", {width}, false), wq = b.input("wq", {width, width}), wk = b.input("wk", {kv, width}),
       wv = b.input("wv", {kv, width});
  auto wo = b.input("wo", {width, width});
  auto q = b.storage("q", {width}), k = b.storage("k", {kv}), v = b.storage("v", {kv}), o = b.storage("o", {width}),
       y = b.storage("y", {width});
  b.output(y);
  b.matmul_rows("qkv", width, 2, 32, x, {{wq, q, width / 2}, {wk, k, kv / 2}, {wv, v, kv / 2}});
  FusedOp attention;
  attention.op.name = "attention";
  attention.op.record.kind = TaskKind::kAttentionDecode;
  abi::AttentionParams& p = attention.op.record.params.attention;
  p.batch = 1, p.heads = 8, p.kv_heads = 2, p.queries = p.keys = 1, p.head_dim = p.value_dim = 64, p.parts = 1,
  p.fresh_operand = -1;
  b.operand(attention, {q, {width, 64, 64, 1}}, Access::kRead);
  b.operand(attention, {k, {kv, 64, 64, 1}}, Access::kRead);
  b.operand(attention, {v, {kv, 64, 64, 1}}, Access::kRead);
  b.operand(attention, {o, {width, 64, 64, 1}}, Access::kWrite);
  for (int none = 0; none < 3; ++none) b.operand(attention, {}, Access::kRead);
  b.graph.ops.push_back(attention);
  b.matmul_rows("out", width, 1, 0, o, {{wo, y, width}});
  const planner::Draft draft = synchronized(b);
  const Oracle oracle(draft);
  expect_equal(oracle.races(), 0, "decode: races");
  expect_equal(oracle.fraction_awaited(1, 0), 0.5, "decode: attention waits for its kv head's units");
  expect_equal(oracle.fraction_awaited(2, 1), 1.0, "decode: the projection waits for all heads");
  expect_equal(record(draft, "out").num_waits, 1, "decode: one wait");
}

/// An op with more inputs than waits: empty ops gather them.
void test_join() {
  Builder b;
  std::vector<Ref> reads;
  for (int i = 0; i < 17; ++i) {
    auto in = b.input(cat("in", i), {256, 64}, false), mid = b.storage(cat("mid", i), {256, 64});
    b.program_op(TaskKind::kPointwise, cat("copy", i), {256, 64}, 0, {b.dense_ref(in)}, {b.dense_ref(mid)});
    reads.push_back(b.dense_ref(mid));
  }
  auto out = b.storage("out", {256, 64});
  b.output(out);
  b.program_op(TaskKind::kPointwise, "sum", {256, 64}, 0, reads, {b.dense_ref(out)});
  const planner::Draft draft = synchronized(b);
  expect_equal(Oracle(draft).races(), 0, "join: races");
  expect(draft.graph.ops.size() > 18, "join: no empty op was added");
  for (const FusedOp& op : draft.graph.ops) expect(op.op.record.num_waits <= abi::kMaxWaits, "join: too many waits");
}

/// In-place updates: a later writer waits for the readers of what it overwrites.
void test_overwrite() {
  Builder b;
  auto state = b.input("state", {1024, 256}, false), other = b.input("other", {1024, 256}, false);
  auto before = b.storage("before", {1024, 256}), after = b.storage("after", {1024, 256});
  b.output(before);
  b.output(after);
  b.program_op(TaskKind::kPointwise, "read", {1024, 256}, 0, {b.dense_ref(state)}, {b.dense_ref(before)});
  b.program_op(TaskKind::kPointwise, "update", {1024, 256}, 0, {b.dense_ref(other)}, {b.dense_ref(state)});
  b.program_op(TaskKind::kPointwise, "again", {1024, 256}, 0, {b.dense_ref(state)}, {b.dense_ref(after)});
  const planner::Draft draft = synchronized(b);
  const Oracle oracle(draft);
  expect_equal(oracle.races(), 0, "overwrite: races");
  expect(oracle.fraction_awaited(1, 0) < 0.1, "overwrite: an update waits for the tiles that read the same elements");
  expect(oracle.fraction_awaited(2, 1) < 0.1, "overwrite: a reader waits for the tiles that wrote the same elements");
}

/// Two halves of a row written by two ops: independent; the reader waits for both.
void test_concatenation() {
  Builder b;
  auto left = b.input("left", {512, 64}, false), right = b.input("right", {512, 64}, false);
  auto both = b.storage("both", {512, 128}), out = b.storage("out", {512, 128});
  b.output(out);
  b.program_op(TaskKind::kPointwise, "left", {512, 64}, 0, {b.dense_ref(left)}, {{both, {128, 1}, 0}});
  b.program_op(TaskKind::kPointwise, "right", {512, 64}, 0, {b.dense_ref(right)}, {{both, {128, 1}, 64}});
  b.program_op(TaskKind::kRow, "norm", {512, 128}, 1, {b.dense_ref(both)}, {b.dense_ref(out)});
  const planner::Draft draft = synchronized(b);
  const Oracle oracle(draft);
  expect_equal(oracle.races(), 0, "concatenation: races");
  expect_equal(record(draft, "right").num_waits, 0, "concatenation: the halves are independent");
  expect_equal(record(draft, "norm").num_waits, 2, "concatenation: the reader waits for both");
  expect(oracle.fraction_awaited(2, 0) < 0.3, "concatenation: by rows");
}

/// Few rows of a norm, a row a tile: the product behind it waits for one counter of all its rows, though a residual
/// that reads single rows comes later. `kept`: that reads the sum that the norm stores beside, not the norm.
void test_residual(bool kept) {
  constexpr int64_t kRows = 128, kWidth = 256;  // too short for parts of k
  const std::string what = kept ? "kept sum: " : "residual: ";
  Builder b;
  auto in = b.input("in", {kRows, kWidth}, false), w = b.input("w", {kWidth, kWidth});
  auto sum = b.storage("sum", {kRows, kWidth}), norm = b.storage("norm", {kRows, kWidth}),
       product = b.storage("product", {kRows, kWidth}), out = b.storage("out", {kRows, kWidth});
  b.output(out);
  std::vector<Ref> stored = {b.dense_ref(norm)};
  if (kept) stored.insert(stored.begin(), b.dense_ref(sum));
  b.program_op(TaskKind::kRow, "norm", {kRows, kWidth}, 1, {b.dense_ref(in)}, stored).spread_rows = true;
  b.matmul("product", 1, kRows, kWidth, kWidth, {norm, {0, kWidth, 1}}, {w, {0, 1, kWidth}}, {product, {0, kWidth, 1}});
  const Ref residual = b.dense_ref(kept ? sum : norm);
  b.program_op(TaskKind::kRow, "next", {kRows, kWidth}, 1, {b.dense_ref(product), residual}, {b.dense_ref(out)})
      .spread_rows = true;
  const planner::Draft draft = synchronized(b);
  expect_equal(Oracle(draft).races(), 0, what + "races");
  expect_equal(plan::num_tiles(record(draft, "norm")), kRows, what + "a row a tile");
  const abi::OpRecord& reader = record(draft, "product");
  expect_equal(reader.num_waits, 1, what + "waits of the product");
  expect(reader.wait[0].extent <= reader.wait[0].div, what + "the product waits for several counters");
  expect_equal(record(draft, "next").num_waits, 1, what + "the residual's wait follows from the product's");
}

}  // namespace

int main() {
  test_encoder(4, 384);
  test_encoder(3, 200);
  test_encoder(1, 1000);
  test_sequential();
  test_decode();
  test_join();
  test_overwrite();
  test_concatenation();
  for (const bool kept : {false, true}) test_residual(kept);
  return finish("synchronize");
}
