// The verifier on races: every wait and every arena offset of real plans is damaged in turn, and every damage that a
// brute-force enumeration of the plan calls a race must be caught.
#include "support/check.h"
#include "support/model_graph.h"
#include "support/plan_brute.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

bool all_pairs = false;

struct Score {
  int caught = 0, redundant = 0, too_strict = 0, missed = 0;
};
void print(const char* what, const std::string& name, const Score& s) {
  std::printf("%s: %s: %d caught, %d redundant (proved), %d refused though right, %d missed\n", name.c_str(), what,
              s.caught, s.redundant, s.too_strict, s.missed);
  EXPECT_EQ(s.missed, 0);
}
/// `race`: what the enumeration says.
void count(Score& score, bool race, const std::string& message, const std::string& damage) {
  bool refused = !message.empty();
  if (race && !refused) test::fail("not caught: " + damage, __FILE__, __LINE__);
  ++(race ? (refused ? score.caught : score.missed) : (refused ? score.too_strict : score.redundant));
}

/// Every wait taken away, and every wait made for the wrong rows.
void damage_waits(const plan::Plan& plan, const std::set<std::pair<int64_t, int64_t>>& conflicts) {
  Score removed, shifted;
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w) {
      plan::Plan damaged = plan;
      abi::OpRecord& r = damaged.ops[op].record;
      std::copy(r.wait + w + 1, r.wait + r.num_waits, r.wait + w);
      --r.num_waits;
      count(removed, !BrutePlan(damaged).all_ordered(conflicts), complaint(damaged),
            cat("op ", op, " without wait ", w));
      for (int change = 0; change < 3; ++change) {
        plan::Plan other = plan;
        abi::Wait& wait = other.ops[op].record.wait[w];
        if (change == 0) wait.base += wait.div;
        if (change == 1) wait.extent = std::max(1, wait.extent / 2);
        if (change == 2) wait.coef[0] = wait.coef[1] = wait.coef[2] = 0;
        count(shifted, !BrutePlan(other).all_ordered(conflicts), complaint(other),
              cat("op ", op, ", wait ", w, " changed ", change));
      }
    }
  print("waits removed", plan.name, removed);
  print("waits changed", plan.name, shifted);
  EXPECT(removed.caught > 3);
  EXPECT_EQ(removed.too_strict, 0);
}

/// Arena buffers put where another one lies: every fourth pair (a pair takes half a second), or all (`--all`).
void damage_memory(const plan::Plan& plan) {
  Score moved;
  const size_t every = all_pairs ? 1 : 4;
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    for (size_t j = 0; j < plan.buffers.size(); ++j) {
      const plan::Buffer &a = plan.buffers[i], &b = plan.buffers[j];
      bool arena = a.kind == plan::BufferKind::kArena && b.kind == plan::BufferKind::kArena;
      if (!arena || a.arena_offset == b.arena_offset || (i * 7 + j) % every != 0) continue;
      plan::Plan damaged = plan;
      damaged.buffers[i].arena_offset = b.arena_offset;
      damaged.arena_bytes = std::max(plan.arena_bytes, b.arena_offset + a.size_bytes);
      BrutePlan brute(damaged);
      count(moved, !brute.all_ordered(brute.conflicts()), complaint(damaged),
            cat("slot ", i, " at the place of slot ", j));
    }
  print("buffers moved", plan.name, moved);
  EXPECT(moved.caught > 0 || plan.ops.size() < 10);
}

void test_plan(const plan::Plan& plan) {
  EXPECT_EQ(complaint(plan), "");
  BrutePlan brute(plan);
  auto conflicts = brute.conflicts();
  EXPECT(brute.all_ordered(conflicts));
  auto report = verify_plan(plan, planner::VerifyLevel::kFull);
  std::set<std::string> kinds;
  for (const plan::Op& op : plan.ops) kinds.insert(plan::name(op.record.kind));
  for (const std::string& kind : kinds) std::printf("%s ", kind.c_str());
  std::printf("\n%s: %zu ops, %lld tiles, %zu conflicts\n", plan.name.c_str(), plan.ops.size(),
              static_cast<long long>(report.tiles), conflicts.size());
  damage_waits(plan, conflicts);
  damage_memory(plan);
  plan::Plan back = plan::from_json(plan::to_json(plan));
  EXPECT_EQ(plan::to_string(back), plan::to_string(plan));
  EXPECT_EQ(complaint(back), "");
}

/// Sums by index of each other's results, with pointwise ops between them.
plan::Plan sums_by_index() {
  GraphBuilder b;
  ir::ValueId x = b.input(DType::kF32, {40, 24});
  int64_t terms = 40;
  for (const int64_t rows : {50, 70, 30}) {
    const ir::ValueId index = b.input(DType::kI64, {terms}), sum = b.value(DType::kF32, {rows, 24});
    b.node(ir::OpKind::kScatterSum, {b.pointwise(Opcode::kExp, {x}, DType::kF32, {terms, 24}), index}, {sum});
    x = sum;
    terms = rows;
  }
  b.graph.outputs = {b.pointwise(Opcode::kExp, {x}, DType::kF32, {terms, 24})};
  plan::Plan plan = plan_of(b.graph, true, true);
  plan.name = "sums by index";
  return plan;
}

/// Thresholds of rows, and what keeps to them.
plan::Plan selected_rows(int64_t rows, int64_t size) {
  GraphBuilder b;
  const ir::ValueId x = b.input(DType::kF32, {rows, size}), count = b.input(DType::kI64, {rows}),
                    rest = b.input(DType::kF32, {rows});
  ir::ValueId distance = b.pointwise(Opcode::kExp, {x}, DType::kF32, {rows, size});
  std::vector<ir::ValueId> last;
  for (const ir::ValueId bound : {count, rest}) {
    last.push_back(b.value(DType::kI64, {rows}));
    b.node(ir::OpKind::kRowSelect, {distance, bound}, {last.back()});
    distance = b.pointwise(Opcode::kNeg, {distance}, DType::kF32, {rows, size});
  }
  b.graph.outputs = {b.pointwise(Opcode::kAdd, last, DType::kI64, {rows})};
  plan::Plan plan = plan_of(b.graph, true, true);
  plan.name = cat("selected rows of ", size);
  return plan;
}

/// Distances that the select makes, which others read as well, before it and behind.
plan::Plan selected_values(int64_t rows, int64_t size) {
  Model b;
  const ir::ValueId x = b.input(DType::kF32, {rows, size}), count = b.input(DType::kI64, {rows}),
                    found = b.value(DType::kI64, {rows});
  const ir::ValueId values = b.pointwise(Opcode::kExp, {x}, DType::kF32, {rows, size}),
                    top = b.reduce(ReduceOp::kMax, values, {1}, true, DType::kF32),
                    distance = b.pointwise(Opcode::kSub, {top, values}, DType::kF32, {rows, size}),
                    other = b.pointwise(Opcode::kNeg, {distance}, DType::kF32, {rows, size});
  b.node(ir::OpKind::kRowSelect, {distance, count}, {found});
  b.graph.outputs = {found, other};
  plan::Plan plan = plan_of(b.graph, true, true);
  plan.name = cat("selected values of ", size);
  return plan;
}

/// What is drawn from rows of parts, and from one worker's, of values and noise that ops make.
plan::Plan drawn_rows(const std::vector<int64_t>& sizes) {
  constexpr int64_t kRows = 2;
  GraphBuilder b;
  const ir::ValueId share = b.input(DType::kF32, {kRows});
  for (const int64_t size : sizes) {
    const ir::ValueId x = b.input(DType::kF32, {kRows, size}),
                      values = b.pointwise(Opcode::kExp, {x}, DType::kF32, {kRows, size}),
                      noise = b.pointwise(Opcode::kNeg, {x}, DType::kF32, {kRows, size}),
                      token = b.value(DType::kI64, {kRows}), best = b.value(DType::kF32, {kRows});
    b.node(ir::OpKind::kRowDraw, {values, noise, share}, {token, best});
    b.graph.outputs.push_back(token);
    b.graph.outputs.push_back(b.pointwise(Opcode::kNeg, {best}, DType::kF32, {kRows}));
  }
  plan::Plan plan = plan_of(b.graph, true, true);
  plan.name = "drawn rows";
  return plan;
}

}  // namespace

int main(int argc, char** argv) {
  all_pairs = argc > 1 && std::string(argv[1]) == "--all";
  for (const plan::Plan& plan : sample_plans()) test_plan(plan);
  test_plan(sums_by_index());
  test_plan(selected_rows(5, 300));
  test_plan(selected_rows(2, 8200));  // in four parts
  test_plan(selected_values(2, 16400));
  test_plan(drawn_rows({300, 8200}));
  return test::result("verify");
}
