// Which kind attention of few queries becomes by its head size, and how the kernel of such a plan is generated.
#include <string>

#include "base/unsupported.h"
#include "codegen/codegen.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/graph_builder.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::ir;
using abi::TaskKind;
using ark::cat;
using ark::test::GraphBuilder;

namespace {

/// One query of `heads` over two kv heads; what a product with weights reads where `projected`.
plan::Plan plan_of(int64_t d, int64_t keys, int64_t heads = 4, bool projected = false, DType t = DType::kBF16) {
  GraphBuilder b;
  const ValueId q = b.input(t, {1, heads, 1, d}), k = b.input(t, {1, 2, keys, d}), v = b.input(t, {1, 2, keys, d});
  const ValueId out = b.value(t, {1, heads, 1, d}), lse = b.value(DType::kF32, {1, heads, 1});
  b.node(OpKind::kAttention, {q, k, v}, {out, lse}).attrs.scale = 0.1;
  b.graph.outputs = {out};
  if (projected) {
    const ValueId row = b.value(t, {1, heads * d}, out), y = b.value(t, {1, 256});
    b.node(OpKind::kView, {out}, {row});
    const ValueId w = b.input(t, {256, heads * d}), turned = b.value(t, {heads * d, 256}, w);
    b.graph.values[static_cast<size_t>(turned)].strides = {test::number(1), test::number(heads * d)};
    b.node(OpKind::kView, {w}, {turned});
    b.node(OpKind::kMatmul, {row, turned}, {y});
    b.graph.outputs = {y};
  }
  return planner::make_plan(bind(b.graph, {}), {});
}

const plan::Op& attention_of(const plan::Plan& plan) {
  for (const plan::Op& op : plan.ops)
    for (const TaskKind kind : {TaskKind::kAttentionDecode, TaskKind::kAttentionForward, TaskKind::kAttentionSimple})
      if (op.record.kind == kind) return op;
  throw InternalError("a plan without attention");
}

void test_kind() {
  for (int64_t d = 8; d <= 320; d += 8) {
    const bool decode = d >= 64 && d <= 256 && d % 16 == 0;
    const TaskKind wanted = decode     ? TaskKind::kAttentionDecode
                            : d <= 128 ? TaskKind::kAttentionForward
                                       : TaskKind::kAttentionSimple;
    EXPECT_EQ(static_cast<int>(attention_of(plan_of(d, 100)).record.kind), static_cast<int>(wanted));
  }
  const auto kind = [](const plan::Plan& plan) { return attention_of(plan).record.kind; };
  EXPECT(kind(plan_of(256, 100, 32)) == TaskKind::kAttentionDecode);
  EXPECT(kind(plan_of(256, 100, 34)) == TaskKind::kAttentionSimple);  // 17 rows of a kv head
  EXPECT(kind(plan_of(256, 100, 4, false, DType::kF32)) == TaskKind::kAttentionSimple);
}

/// A part is as many bytes of heads of 256 columns as of heads of 128.
void test_parts() {
  const auto parts = [](int64_t d) {
    const abi::AttentionParams& p = attention_of(plan_of(d, 1000)).record.params.attention;
    return cat(p.parts, " of ", p.positions_per_part);
  };
  for (const int64_t d : {64, 80, 128}) EXPECT_EQ(parts(d), "4 of 256");
  for (const int64_t d : {144, 192, 256}) EXPECT_EQ(parts(d), "8 of 128");
}

bool has(const plan::Plan& plan, const std::string& text) {
  return codegen::generate(plan, {}).text.find(text) != std::string::npos;
}

/// The kernel knows its head sizes; other ones are refused.
void test_source() {
  EXPECT(has(plan_of(64, 100), "kDecodeDims = 16;"));
  EXPECT(has(plan_of(80, 100), "kDecodeDims = 32;"));
  EXPECT(has(plan_of(256, 100), "kDecodeDims = 65536;"));
  plan::Plan both = plan_of(64, 100);
  both.ops.push_back(plan_of(256, 100).ops[0]);
  EXPECT(has(both, "kDecodeDims = 65552;"));
  for (const int wrong : {48, 72, 272}) {
    plan::Plan other = plan_of(64, 100);
    other.ops[0].record.params.attention.head_dim = other.ops[0].record.params.attention.value_dim = wrong;
    EXPECT_THROW(UnsupportedError, codegen::generate(other, {}), cat("head size ", wrong));
  }
}

/// Loaders of wide heads have more registers.
void test_registers() {
  EXPECT(has(plan_of(128, 100), "kServiceRegisters = 56, kConsumerRegisters = 224;"));
  for (const int64_t d : {144, 256}) EXPECT(has(plan_of(d, 100), "kServiceRegisters = 72, kConsumerRegisters = 216;"));
}

void test_damage() {
  const auto refused = [](const char* what, auto&& damage) {
    plan::Plan damaged = plan_of(256, 100);
    damage(damaged.ops[0].record.params.attention);
    const std::string message = test::complaint(damaged);
    EXPECT(message.find(what) != std::string::npos);
  };
  EXPECT_EQ(test::complaint(plan_of(256, 100)), "");
  for (const int wrong : {48, 72, 272})
    refused("expected equal multiples of 16", [&](abi::AttentionParams& p) { p.head_dim = p.value_dim = wrong; });
  refused("expected equal multiples of 16", [](abi::AttentionParams& p) { p.value_dim = 128; });
  refused("34 query rows", [](abi::AttentionParams& p) { p.heads = 68; });
}

/// What the projection reads of parts it reads by vectors, whose rows are known: of heads of 80 as well.
void test_rows_of_parts() {
  for (const int64_t d : {64, 80, 96, 256}) EXPECT(has(plan_of(d, 1000, 4, true), cat("load_parts<V, ", d, ">")));
}

}  // namespace

int main() {
  test_kind();
  test_parts();
  test_source();
  test_registers();
  test_damage();
  test_rows_of_parts();
  return test::result("decode_heads");
}
