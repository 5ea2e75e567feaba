// Decode attention of more heads than workers: items of two tiles that are done at once, and where there are none.
#include <algorithm>

#include "codegen/codegen.h"
#include "plan/early_reads.h"
#include "planner/planner.h"
#include "planner/verify/structure_key.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

/// One query of each sequence, of two heads for each kv head, against a cache of so many rows; `counted`: the row that
/// it writes is a position.
struct Case {
  int64_t batch = 75, kv_heads = 2, dim = 64, keys = 256;
  bool masked = true, by_head = false, causal = false, counted = true;
};

plan::Plan plan_of(const Case& c) {
  Model m;
  const int64_t heads = 2 * c.kv_heads;
  const std::vector<int64_t> cache{c.batch, c.kv_heads, c.keys, c.dim};
  const ValueId position = m.input(kI64, {}), keys = m.input(kBF16, cache), values = m.input(kBF16, cache),
                q = m.input(kBF16, {c.batch, heads, 1, c.dim});
  const ValueId row = m.pointwise(Opcode::kAdd, {m.iota(1), position}, kI64, {1});
  const ValueId at = m.view(c.counted ? row : m.input(kI64, {1}), {1, 1}, {1, 1});
  ValueId stored[2];
  for (int i : {0, 1})
    stored[i] =
        m.index_store(i == 0 ? keys : values, m.input(kBF16, {c.batch, c.kv_heads, 1, c.dim}), at, {0, 1, -1, 3});
  const ValueId out = m.value(kBF16, {c.batch, heads, 1, c.dim}), lse = m.value(kF32, {c.batch, heads, 1});
  std::vector<ValueId> operands{q, stored[0], stored[1]};
  const int64_t rows = c.by_head ? heads : 1;
  if (c.masked)
    operands.push_back(
        m.view(m.input(kBool, {rows, c.keys}), {1, rows, 1, c.keys}, {rows * c.keys, c.keys, c.keys, 1}));
  ir::Node& attention = m.node(OpKind::kAttention, operands, {out, lse});
  attention.attrs.has_mask = c.masked;
  attention.attrs.causal = c.causal;
  attention.attrs.scale = 0.125;
  m.copy_to(keys, stored[0]);
  m.copy_to(values, stored[1]);
  m.graph.outputs = {m.unary(Opcode::kNeg, out)};
  verify(m.graph);
  return planner::make_plan(m.graph, {});
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
  const plan::Plan even = plan_of({});
  EXPECT_EQ(at_once(even), 2);
  EXPECT(items_of(even) == std::vector<int>(75, 2));
  EXPECT(codegen::generate(even, {}).text.find("kDecodePairs = true") != std::string::npos);
  std::vector<int> wanted(76, 2);
  wanted[0] = 1;
  EXPECT(items_of(plan_of({.batch = 151, .kv_heads = 1})) == wanted);
  EXPECT_EQ(at_once(plan_of({.dim = 128})), 2);
  EXPECT_EQ(at_once(plan_of({.masked = false, .causal = true})), 2);
}

void test_one_by_one() {
  const plan::Plan few = plan_of({.batch = 66});  // as many tiles as workers
  EXPECT_EQ(at_once(few), 1);
  EXPECT(std::ranges::all_of(items_of(few), [](int count) { return count == 1; }));
  EXPECT(codegen::generate(few, {}).text.find("kDecodePairs = false") != std::string::npos);
  EXPECT_EQ(at_once(plan_of({.dim = 144})), 1);
  EXPECT_EQ(at_once(plan_of({.masked = false})), 1);
  const plan::Plan uncounted = plan_of({.counted = false});
  EXPECT(!plan::has_early_cache(uncounted.ops[attention_of(uncounted)]));
  EXPECT_EQ(at_once(uncounted), 1);
}

/// No table tells which rows behind the position such a mask hides.
void test_mask_by_head() {
  const plan::Plan plan = plan_of({.by_head = true});
  const plan::Op& op = plan.ops[attention_of(plan)];
  EXPECT(plan::has_early_cache(op));
  EXPECT(op.operands[abi::AttentionOperand::kMask].slot != abi::kNoSlot);
  EXPECT(op.operands[abi::AttentionOperand::kRange].slot == abi::kNoSlot);
  EXPECT_EQ(at_once(plan), 1);
}

/// Rounds of 132 workers, and bytes: two at once take half of the rounds, rounded up, and twice the bytes in each.
void test_cost() {
  const auto of = [](int64_t batch, int64_t kv_heads, int64_t dim, int64_t keys) {
    return at_once(plan_of({.batch = batch, .kv_heads = kv_heads, .dim = dim, .keys = keys}));
  };
  EXPECT_EQ(of(133, 1, 64, 256), 2);  // one round instead of two
  EXPECT_EQ(of(264, 1, 64, 256), 2);
  EXPECT_EQ(of(265, 1, 64, 256), 1);  // two instead of three
  EXPECT_EQ(of(396, 1, 64, 256), 1);
  EXPECT_EQ(of(397, 1, 64, 256), 2);  // two instead of four
  EXPECT_EQ(of(265, 1, 64, 64), 2);
  EXPECT_EQ(of(75, 2, 64, 1024), 2);
  EXPECT_EQ(of(75, 2, 64, 2048), 1);  // bytes
  EXPECT_EQ(of(75, 2, 128, 512), 2);
  EXPECT_EQ(of(75, 2, 128, 1024), 1);
  EXPECT_EQ(of(64, 8, 64, 1024), 2);
  EXPECT_EQ(of(16, 32, 96, 1024), 1);
}

/// What the verifier found of one plan must not stand for the other one.
void test_structure() {
  plan::Plan plan = plan_of({});
  const uint64_t key = planner::structure_key(plan);
  plan.ops[attention_of(plan)].record.params.attention.tiles_at_once = 1;
  EXPECT(planner::structure_key(plan) != key);
}

void test_damage() {
  const auto refused = [](const Case& c, int wrong, const std::string& part) {
    plan::Plan plan = plan_of(c);
    EXPECT_EQ(complaint(plan), "");
    plan.ops[attention_of(plan)].record.params.attention.tiles_at_once = wrong;
    const std::string found = complaint(plan);
    if (found.find(part) == std::string::npos) fail(cat("expected \"", part, "\", got ", found), __FILE__, __LINE__);
  };
  for (const int wrong : {-1, 3}) refused({}, wrong, cat(wrong, " tiles at once"));
  refused({.dim = 144}, 2, "2 tiles at once, of 1 parts, heads of 144");
  refused({.counted = false}, 2, "and no position");
  const Case in_parts{.batch = 2, .keys = 4096};
  const plan::Plan plan = plan_of(in_parts);
  EXPECT(plan::has_early_cache(plan.ops[attention_of(plan)]));
  refused(in_parts, 2, "2 tiles at once, of 16 parts, heads of 64 columns and a position");
}

}  // namespace

int main() {
  test_pairs();
  test_one_by_one();
  test_mask_by_head();
  test_cost();
  test_structure();
  test_damage();
  return test::result("pair_decode_tiles");
}
