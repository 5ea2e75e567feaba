// Decode attention of more heads than workers: items of two tiles that are done at once, and where there are none.
#include <algorithm>

#include "codegen/codegen.h"
#include "plan/early_reads.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

constexpr int kWorkers = 16;

struct Case {
  int64_t batch = 9, dim = 64;  // times two kv heads
  bool masked = true, counted = true;
};

/// One query of each sequence against a cache of 256 rows; `counted`: the row that it writes is a position.
plan::Plan plan_of(const Case& c) {
  Model m;
  const ValueId position = m.input(kI64, {}), keys = m.input(kBF16, {c.batch, 2, 256, c.dim}),
                values = m.input(kBF16, {c.batch, 2, 256, c.dim}), q = m.input(kBF16, {c.batch, 4, 1, c.dim});
  const ValueId row = m.pointwise(Opcode::kAdd, {m.iota(1), position}, kI64, {1});
  const ValueId at = m.view(c.counted ? row : m.input(kI64, {1}), {1, 1}, {1, 1});
  ValueId stored[2];
  for (int i : {0, 1})
    stored[i] = m.index_store(i == 0 ? keys : values, m.input(kBF16, {c.batch, 2, 1, c.dim}), at, {0, 1, -1, 3});
  const ValueId out = m.value(kBF16, {c.batch, 4, 1, c.dim}), lse = m.value(kF32, {c.batch, 4, 1});
  std::vector<ValueId> operands{q, stored[0], stored[1]};
  if (c.masked) operands.push_back(m.view(m.input(kBool, {256}), {1, 1, 1, 256}, {256, 256, 256, 1}));
  ir::Node& attention = m.node(OpKind::kAttention, operands, {out, lse});
  attention.attrs.has_mask = c.masked;
  attention.attrs.scale = 0.125;
  m.copy_to(keys, stored[0]);
  m.copy_to(values, stored[1]);
  m.graph.outputs = {m.unary(Opcode::kNeg, out)};
  verify(m.graph);
  planner::Options options;
  options.machine.num_workers = kWorkers;
  return planner::make_plan(m.graph, options);
}

size_t attention_of(const plan::Plan& plan) {
  for (size_t i = 0; i < plan.ops.size(); ++i)
    if (plan.ops[i].record.kind == abi::TaskKind::kAttentionDecode) return i;
  throw InternalError("a plan without attention");
}
int at_once(const plan::Plan& plan) {
  return std::max(1, plan.ops[attention_of(plan)].record.params.attention.tiles_at_once);
}

/// Of all workers.
std::vector<int> items_of(const plan::Plan& plan) {
  std::vector<int> counts;
  for (const std::vector<abi::WorkItem>& list : plan.lists)
    for (const abi::WorkItem& item : list)
      if (item.op == static_cast<int>(attention_of(plan))) counts.push_back(item.count);
  std::ranges::sort(counts);
  return counts;
}

void test_pairs() {
  const plan::Plan even = plan_of({.batch = 9});  // 18 tiles
  EXPECT_EQ(at_once(even), 2);
  EXPECT(items_of(even) == std::vector<int>(9, 2));
  EXPECT(codegen::generate(even, {}).text.find("kDecodePairs = true") != std::string::npos);
  EXPECT_EQ(at_once(plan_of({.batch = 9, .dim = 128})), 2);
}

void test_one_by_one() {
  const plan::Plan few = plan_of({.batch = 8});  // as many tiles as workers
  EXPECT_EQ(at_once(few), 1);
  EXPECT(std::ranges::all_of(items_of(few), [](int count) { return count == 1; }));
  EXPECT(codegen::generate(few, {}).text.find("kDecodePairs = false") != std::string::npos);
  EXPECT_EQ(at_once(plan_of({.dim = 144})), 1);
  EXPECT_EQ(at_once(plan_of({.masked = false})), 1);
  const plan::Plan uncounted = plan_of({.counted = false});
  EXPECT(!plan::has_early_cache(uncounted.ops[attention_of(uncounted)]));
  EXPECT_EQ(at_once(uncounted), 1);
}

void test_damage() {
  const auto refused = [](const Case& c, auto&& damage) {
    plan::Plan plan = plan_of(c);
    EXPECT_EQ(complaint(plan), "");
    damage(plan.ops[attention_of(plan)]);
    EXPECT(complaint(plan).find("tiles at once") != std::string::npos);
  };
  for (const int wrong : {-1, 3}) refused({}, [&](plan::Op& op) { op.record.params.attention.tiles_at_once = wrong; });
  const auto two = [](plan::Op& op) { op.record.params.attention.tiles_at_once = 2; };
  refused({.dim = 144}, two);
  refused({.counted = false}, two);
}

}  // namespace

int main() {
  test_pairs();
  test_one_by_one();
  test_damage();
  return test::result("pair_decode_tiles");
}
