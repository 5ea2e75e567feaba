// Attention's backward by keys in parts of the query heads that share a kv head: when, with which memory, proved,
// enumerated and damaged. What it computes: tests/targets/test_host_attention.cpp.
#include <algorithm>

#include "device/abi/roles.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/graph_builder.h"
#include "support/plan_brute.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

struct Heads {
  int64_t batch = 1, heads = 8, kv_heads = 2, length = 4096, dim = 128;
  bool causal = true;
  DType dtype = DType::kBF16;
};

Graph backward(const Heads& h) {
  GraphBuilder b;
  const std::vector<int64_t> of_query = {h.batch, h.heads, h.length, h.dim},
                             of_key = {h.batch, h.kv_heads, h.length, h.dim};
  const ValueId dout = b.input(h.dtype, of_query), q = b.input(h.dtype, of_query), k = b.input(h.dtype, of_key),
                v = b.input(h.dtype, of_key), out = b.input(h.dtype, of_query),
                lse = b.input(DType::kF32, {h.batch, h.heads, h.length});
  const ValueId dq = b.value(h.dtype, of_query), dk = b.value(h.dtype, of_key), dv = b.value(h.dtype, of_key);
  b.node(OpKind::kAttentionBackward, {dout, q, k, v, out, lse}, {dq, dk, dv}).attrs.causal = h.causal;
  b.graph.outputs = {dq, dk, dv};
  b.graph.name = "backward";
  verify(b.graph);
  return b.graph;
}

plan::Plan plan_of(const Heads& h, const planner::Options& options = {}) {
  return planner::make_plan(backward(h), options);
}

const plan::Op& keys_of(const plan::Plan& plan) {
  const auto found = std::ranges::find_if(
      plan.ops, [](const plan::Op& op) { return op.record.kind == abi::TaskKind::kAttentionBackward; });
  check(found != plan.ops.end(), "no attention backward");
  return *found;
}
int parts_of(const plan::Plan& plan) { return std::max(1, keys_of(plan).record.params.attention.head_parts); }
int sums_of(const plan::Plan& plan) {
  return static_cast<int>(
      std::ranges::count_if(plan.ops, [](const plan::Op& op) { return op.record.kind == abi::TaskKind::kPointwise; }));
}

/// Few tiles, of which the first have twice the work of an average one: parts. Many tiles, or a kv head for each query
/// head: none.
void test_choice() {
  const plan::Plan plan = plan_of({});
  EXPECT_EQ(parts_of(plan), 4);
  EXPECT_EQ(keys_of(plan).record.grid[1], 8);
  EXPECT_EQ(sums_of(plan), 1);
  EXPECT_EQ(parts_of(plan_of({.causal = false})), 4);
  EXPECT_EQ(parts_of(plan_of({.heads = 6})), 3);
  for (const Heads& h : {Heads{.heads = 32, .kv_heads = 8}, Heads{.kv_heads = 8}, Heads{.batch = 8, .causal = false},
                         Heads{.length = 16}}) {
    const plan::Plan whole = plan_of(h);
    EXPECT_EQ(parts_of(whole), 1);
    EXPECT_EQ(sums_of(whole), 0);
  }
}

/// Few kv heads take about as long as many, of which nothing is split.
void test_time() {
  const double split = plan_of({}).predicted_ms, even = plan_of({.kv_heads = 8}).predicted_ms;
  std::printf("2 kv heads %.3f ms, 8 kv heads %.3f ms\n", split, even);
  EXPECT(split < 1.15 * even);
}

void test_proof() {
  planner::Options slow;
  slow.machine.num_workers = 6;
  slow.machine.tensor_flops = 1e11;
  const plan::Plan plan = plan_of({.heads = 4, .kv_heads = 1, .length = 256, .dim = 64}, slow);
  EXPECT_EQ(parts_of(plan), 4);
  EXPECT_EQ(complaint(plan), std::string());
  const auto conflicts = BrutePlan(plan).conflicts();
  EXPECT(!conflicts.empty() && BrutePlan(plan).all_ordered(conflicts));
  EXPECT_EQ(plan::to_json(plan::from_json(plan::to_json(plan))), plan::to_json(plan));
  const auto keys = static_cast<size_t>(&keys_of(plan) - plan.ops.data());
  const auto must_fail = [&](const char* what, auto&& change) {
    plan::Plan damaged = plan;
    change(damaged.ops[keys], damaged);
    if (complaint(damaged).empty()) test::fail(what, __FILE__, __LINE__);
  };
  using X = abi::AttentionGradOperand;
  must_fail("one part", [](plan::Op& op, plan::Plan&) { op.record.params.attention.head_parts = 1; });
  must_fail("three parts", [](plan::Op& op, plan::Plan&) { op.record.params.attention.head_parts = 3; });
  must_fail("parts overlap", [](plan::Op& op, plan::Plan&) { op.operands[X::kGradK].stride[1] /= 2; });
  must_fail("parts end outside", [](plan::Op& op, plan::Plan&) { op.operands[X::kGradV].stride[1] *= 2; });
  for (size_t op = keys + 1; op < plan.ops.size(); ++op) {
    plan::Plan damaged = plan;
    damaged.ops[op].record.num_waits = 0;
    EXPECT(BrutePlan(damaged).all_ordered(conflicts) == complaint(damaged).empty());
  }
}

}  // namespace

int main() {
  test_choice();
  test_time();
  test_proof();
  return test::result("split_heads");
}
