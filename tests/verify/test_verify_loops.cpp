// What the verifier asks of a loop, by plans that are damaged.
#include <functional>

#include "planner/verify/regions.h"
#include "support/check.h"
#include "support/loop_graphs.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

void refuse(const plan::Plan& plan, const std::function<void(plan::Plan&)>& damage, const std::string& part) {
  plan::Plan damaged = plan;
  damage(damaged);
  for (auto level : {planner::VerifyLevel::kStructure, planner::VerifyLevel::kFull}) {
    const std::string said = complaint(damaged, level);
    if (said.find(part) == std::string::npos)
      test::fail(cat(plan.name, ": expected \"", part, "\", got \"", said, '"'), __FILE__, __LINE__);
  }
}

int32_t other_input(const plan::Plan& plan) {
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].kind == plan::BufferKind::kInput && plan.buffers[i].immutable) return static_cast<int32_t>(i);
  throw InternalError("no input that nobody stores");
}

/// Every operand that is stored to the slot goes to another one of the same size.
void store_elsewhere(plan::Plan& plan, int32_t slot) {
  plan.buffers.push_back(plan.buffers[static_cast<size_t>(slot)]);
  plan.buffers.back().index = 1000;
  for (plan::Op& op : plan.ops) {
    const auto uses = planner::read_uses(op, plan.programs);
    for (size_t i = 0; i < uses.size(); ++i)
      if (uses[i].write && op.operands[i].slot == static_cast<uint32_t>(slot))
        op.operands[i].slot = static_cast<uint32_t>(plan.buffers.size()) - 1;
  }
}

/// What is stored to the slot goes to its first byte.
void store_at_first(plan::Plan& plan, int32_t slot) {
  for (plan::Op& op : plan.ops) {
    const auto uses = planner::read_uses(op, plan.programs);
    for (size_t i = 0; i < uses.size(); ++i)
      if (uses[i].write && op.operands[i].slot == static_cast<uint32_t>(slot)) op.operands[i].offset = 0;
  }
}

void test_damages(const plan::Plan& plan) {
  EXPECT_EQ(complaint(plan), "");
  const int arrivals = plan.loop.arrivals;
  for (int other : {0, 1, arrivals - 1, arrivals + 1})
    if (other != arrivals)
      refuse(
          plan, [&](plan::Plan& p) { p.loop.arrivals = other; },
          cat("the border expects ", other, " arrivals of ", arrivals, " workers with a list"));
  for (size_t i = 0; i < plan.loop.carried.size(); ++i) {
    const int32_t slot = plan.loop.carried[i];
    refuse(plan, [&](plan::Plan& p) { store_elsewhere(p, slot); }, "of which an iteration stores 0");
    refuse(plan, [&](plan::Plan& p) { p.buffers[static_cast<size_t>(slot)].immutable = true; }, "which is immutable");
    refuse(plan, [&](plan::Plan& p) { p.loop.carried.push_back(slot); }, "is carried twice");
  }
  refuse(plan, [&](plan::Plan& p) { p.loop.carried[0] = other_input(p); }, "of which an iteration stores 0");
  refuse(plan, [](plan::Plan& p) { p.loop.carried[0] = 1000; }, "is slot 1000 of");
  refuse(plan, [](plan::Plan& p) { p.loop.carried[0] = -1; }, "is slot -1 of");
  auto make_arena = [](plan::Plan& p) {
    for (size_t i = 0; i < p.buffers.size(); ++i)
      if (p.buffers[i].kind == plan::BufferKind::kArena) p.loop.carried[0] = static_cast<int32_t>(i);
  };
  refuse(plan, make_arena, "is no input");
  refuse(plan, [](plan::Plan& p) { p.loop.carried.clear(); }, "but nothing is carried");
  refuse(plan, [](plan::Plan& p) { p.loop.go_slot = p.loop.carried[0]; }, "expected 2, apart from what is carried");
  refuse(plan, [&](plan::Plan& p) { p.loop.go_slot = other_input(p); }, "expected 2, apart from what is carried");
  if (const int32_t go = plan.loop.go_slot; go >= 0) {
    refuse(plan, [&](plan::Plan& p) { store_elsewhere(p, go); }, "bytes from -1 on are stored, expected byte 1 alone");
    refuse(plan, [&](plan::Plan& p) { store_at_first(p, go); }, "bytes from 0 on are stored, expected byte 1 alone");
  }
  refuse(plan, [](plan::Plan& p) { p.loop.go_slot = 1000; }, "the stop flag is slot 1000");
}

/// A wait that expects less is as an epoch that has not advanced: it is met early in every later iteration.
void test_targets(const plan::Plan& plan) {
  int damaged = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i)
    for (int w = 0; w < plan.ops[i].record.num_waits; ++w, ++damaged)
      refuse(plan, [&](plan::Plan& p) { --p.ops[i].record.wait[w].last_target; }, cat(" arrivals on counter "));
  EXPECT(damaged > 0);
}

/// Half of a carried value is stored.
void test_half_stored() {
  LoopBuilder b;
  ValueId x = b.input(DType::kF32, {8, 16}), half = b.value(DType::kF32, {4, 16}, x);
  b.node(OpKind::kView, {x}, {half});
  ValueId next = b.pointwise(Opcode::kExp, {half}, DType::kF32, {4, 16});
  b.node(OpKind::kCopyTo, {half, next}, {b.value(DType::kF32, {4, 16}, x)});
  b.graph.loop.carried = {0};
  b.graph.outputs = {next};
  EXPECT_THROW(InternalError, plan_of(b.graph, false, true), "has 512 bytes, of which an iteration stores 256");
}

/// Graphs whose loop is wrong.
void test_graphs() {
  auto refused = [](const std::function<void(Graph&)>& damage, const std::string& part) {
    Graph graph = recurrence(24, 32, true);
    damage(graph);
    EXPECT_THROW(InternalError, verify(graph), part);
  };
  refused([](Graph& g) { g.loop.carried.push_back(2); }, "a loop carries input 2, which no node stores");
  refused([](Graph& g) { g.loop.carried.push_back(77); }, "a loop carries input 77 of 6");
  refused([](Graph& g) { g.loop.go = 4; }, "a stop flag is input 4, which no node stores");
  refused([](Graph& g) { g.loop.go = 0; }, "expected two bools");
  refused([](Graph& g) { g.loop.carried.clear(); }, "says whether a loop goes on that carries nothing");
}

void test_text() {
  const Graph graph = recurrence(24, 32, true);
  EXPECT_EQ(to_json(from_json(to_json(graph))), to_json(graph));
  EXPECT(to_string(graph).find("loop carries inputs [0, 1, 3], go 5") != std::string::npos);
  const plan::Plan plan = plan_of(graph, false, true);
  const plan::Plan read = plan::from_json(plan::to_json(plan));
  EXPECT_EQ(plan::to_json(read), plan::to_json(plan));
  EXPECT_EQ(read.loop.arrivals, plan.loop.arrivals);
  EXPECT_EQ(read.loop.go_slot, plan.loop.go_slot);
  EXPECT(plan::to_string(plan).find("loop: carries slots [") != std::string::npos);
}

}  // namespace

int main() {
  for (int workers : {1, 16}) {
    test_damages(plan_of(recurrence(40, 48, true), false, true, workers));
    test_damages(plan_of(decode_loop(64, 1), true, true, workers));
    test_targets(plan_of(recurrence(40, 48, true), false, true, workers));
  }
  test_half_stored();
  test_graphs();
  test_text();
  return test::result("loops, verified");
}
