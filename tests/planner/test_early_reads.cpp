// Which operands may be read before the waits: inputs that nobody writes, and caches below a position.
#include "plan/as_run.h"
#include "plan/early_reads.h"
#include "plan/operand_uses.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/model_graph.h"

using namespace ark;
using namespace ark::test;

namespace {

using X = abi::AttentionOperand;

plan::Plan planned(Model& m, std::vector<ValueId> outputs) {
  m.graph.outputs = std::move(outputs);
  verify(m.graph);
  planner::Options options;
  options.machine.num_workers = 16;
  return planner::make_plan(m.graph, options);
}

std::vector<size_t> ops_of(const plan::Plan& plan, abi::TaskKind kind) {
  std::vector<size_t> ops;
  for (size_t i = 0; i < plan.ops.size(); ++i)
    if (plan.ops[i].record.kind == kind) ops.push_back(i);
  return ops;
}

/// Every operand that is only read and lies in an input that no op writes, and no other.
void test_inputs() {
  auto [m, x] = decode_step();
  const plan::Plan plan = planned(m, {x});
  for (const plan::Op& op : plan.ops) {
    const std::vector<plan::OperandUse> uses = plan::operand_uses(op, plan.programs);
    for (size_t i = 0; i < uses.size(); ++i) {
      const bool cache =
          op.record.kind == abi::TaskKind::kAttentionDecode && (i == X::kK || i == X::kV || i == X::kPosition);
      if (!cache) EXPECT_EQ(plan::is_early(op, i), uses[i].read && plan.buffers[op.operands[i].slot].immutable);
    }
  }
}

/// The position is written, later; the record as it is packed says what the bits say.
void test_cache() {
  auto [m, x] = decode_step();
  const plan::Plan plan = planned(m, {x});
  const std::vector<size_t> decodes = ops_of(plan, abi::TaskKind::kAttentionDecode);
  EXPECT_EQ(decodes.size(), 3u);
  for (const size_t i : decodes) {
    const plan::Op& op = plan.ops[i];
    EXPECT(plan::has_early_cache(op));
    EXPECT(!plan.buffers[op.operands[X::kPosition].slot].immutable);
    EXPECT_EQ(op.record.params.attention.fresh_operand, -1);
    EXPECT_EQ(plan::run_op(plan, i).record.params.attention.fresh_operand, int{X::kPosition});
  }
  for (const size_t i : ops_of(plan, abi::TaskKind::kMatmulRows)) {
    EXPECT_EQ(plan.ops[i].record.params.rows.weights_immutable, 0);
    EXPECT_EQ(plan::run_op(plan, i).record.params.rows.weights_immutable, 1);
  }
}

// ---- one attention over a cache of 512 rows, in parts ----

struct Cache {
  Model m;
  ValueId position, keys, values;

  Cache() {
    position = m.input(kI64, {}), keys = m.input(kBF16, {1, 2, 512, 64}), values = m.input(kBF16, {1, 2, 512, 64});
  }
  ValueId at(ValueId index) { return m.view(index, {1, 1}, {1, 1}); }
  ValueId counted_from(ValueId scalar, int64_t more = 0) {
    ValueId count = m.iota(1);
    if (more != 0) count = m.pointwise(Opcode::kAdd, {count, m.scalar(kI64, static_cast<double>(more))}, kI64, {1});
    return at(m.pointwise(Opcode::kAdd, {count, scalar}, kI64, {1}));
  }
  plan::Plan plan(ValueId keys_at, ValueId values_at) {
    const ValueId q = m.input(kBF16, {1, 4, 1, 64});
    ValueId stored[2];
    const ValueId caches[2] = {keys, values}, places[2] = {keys_at, values_at};
    for (int i : {0, 1}) stored[i] = m.index_store(caches[i], m.input(kBF16, {1, 2, 1, 64}), places[i], {0, 1, -1, 3});
    const ValueId out = m.value(kBF16, {1, 4, 1, 64}), lse = m.value(kF32, {1, 4, 1});
    m.node(OpKind::kAttention, {q, stored[0], stored[1]}, {out, lse}).attrs.scale = 0.125;
    for (int i : {0, 1}) m.copy_to(caches[i], stored[i]);
    return planned(m, {m.unary(Opcode::kNeg, out)});
  }
};

bool has_position(const plan::Plan& plan) {
  const std::vector<size_t> decodes = ops_of(plan, abi::TaskKind::kAttentionDecode);
  EXPECT_EQ(decodes.size(), 1u);
  const plan::Op& op = plan.ops.at(decodes.at(0));
  EXPECT_EQ(plan::has_early_cache(op), op.operands.size() > X::kPosition);
  for (const size_t operand : {X::kK, X::kV}) EXPECT_EQ(plan::is_early(op, operand), plan::has_early_cache(op));
  return plan::has_early_cache(op);
}

/// Who combines the parts knows the position where the attention does, and only there.
void expect_parts(const plan::Plan& plan, bool position) {
  int found = 0;
  for (const plan::Op& op : plan.ops) {
    if (op.record.kind != abi::TaskKind::kPointwise) continue;
    for (const Instr& i : plan.programs[static_cast<size_t>(op.record.params.program.program)].instrs) {
      if (i.op != Opcode::kLoadParts) continue;
      const auto at = static_cast<size_t>(op.record.params.program.first_operand + i.operand);
      EXPECT_EQ(op.operands[at + abi::PartsOperand::kPosition].slot != abi::kNoSlot, position);
      ++found;
    }
  }
  EXPECT_EQ(found, 1);
}

void test_positions() {
  const auto plan_of = [](auto&& places) {
    Cache cache;
    const auto [keys_at, values_at] = places(cache);
    return cache.plan(keys_at, values_at);
  };
  const auto both = [](ValueId at) { return std::pair(at, at); };
  const plan::Plan known = plan_of([&](Cache& c) { return both(c.counted_from(c.position)); });
  EXPECT(has_position(known));
  expect_parts(known, true);
  EXPECT(has_position(plan_of([&](Cache& c) { return both(c.counted_from(c.position, 3)); })));
  const plan::Plan below = plan_of([&](Cache& c) { return both(c.counted_from(c.position, -1)); });
  EXPECT(!has_position(below));
  expect_parts(below, false);
  // two scalars; the scalar itself; a scalar that is computed
  EXPECT(!has_position(
      plan_of([&](Cache& c) { return std::pair(c.counted_from(c.position), c.counted_from(c.m.input(kI64, {}))); })));
  EXPECT(!has_position(plan_of([&](Cache& c) { return both(c.at(c.m.input(kI64, {1}))); })));
  EXPECT(!has_position(
      plan_of([&](Cache& c) { return both(c.counted_from(c.m.pointwise(Opcode::kNeg, {c.position}, kI64, {}))); })));
}

}  // namespace

int main() {
  test_inputs();
  test_cache();
  test_positions();
  return test::result("early_reads");
}
