// The verifier on uneven exchanges: what orders parts is taken away in turn. The proof of one rank and that of all
// ranks together, which knows nothing of it, must both see what is missing.
#include <functional>

#include "support/check.h"
#include "support/exchange_graphs.h"
#include "support/rank_damages.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

using plan::BufferKind;

/// Parts of what is computed, there, and back; some ranks get none.
plan::Plan plan_of_parts(int world) {
  ExchangeBuilder b(world);
  std::vector<int64_t> to = {3, 5, 0, 2}, from = {4, 0, 1, 70};
  to.resize(static_cast<size_t>(world)), from.resize(static_cast<size_t>(world));
  int64_t rows = 0;
  for (int64_t n : to) rows += n;
  ValueId x = b.input(DType::kF32, {rows, 96}), w = b.input(DType::kF32, {96, 96});
  std::vector<ValueId> outputs, back;
  for (ValueId part : b.uneven(b.unary(Opcode::kRelu, x), to, from)) {
    outputs.push_back(b.matmul(part, w));
    back.push_back(part);
  }
  std::vector<int64_t> first(static_cast<size_t>(world), 0);
  first[1] = b.numbers(back[0])[0];
  std::vector<int64_t> last(static_cast<size_t>(world), 0);
  last[0] = 9;
  for (ValueId part : b.uneven(b.unary(Opcode::kNeg, back[0]), first, last))
    outputs.push_back(b.unary(Opcode::kExp, part));
  return plan_of(b.finish(outputs, "parts"), true, true, 4);
}

bool touches(const plan::Plan& plan, const plan::Op& op, BufferKind kind) {
  for (const abi::Operand& x : op.operands)
    if (x.slot != abi::kNoSlot && plan.buffers[x.slot].kind == kind) return true;
  return false;
}

int caught = 0;
void must_fail(const plan::Plan& plan, const std::string& what, const std::function<void(plan::Plan&)>& damage,
               bool of_ranks = false) {
  plan::Plan damaged = plan;
  damage(damaged);
  if (complaint(damaged).empty()) test::fail(cat(what, ": not seen"), __FILE__, __LINE__);
  if (of_ranks && refusal(damaged).empty()) test::fail(cat(what, ": not seen of all ranks"), __FILE__, __LINE__);
  ++caught;
}

/// Who sends waits for the parts of this rank, who reads a part for who sends.
void damage_waits(const plan::Plan& plan) {
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const abi::OpRecord& r = plan.ops[op].record;
    const bool reads = touches(plan, plan.ops[op], BufferKind::kPart);
    const bool sends = touches(plan, plan.ops[op], BufferKind::kBoxOut);
    for (int w = 0; w < r.num_waits; ++w) {
      if (!sends && !(reads && r.wait[w].rank_stride != 0)) continue;
      auto change = [&](const char* what, const std::function<void(abi::Wait&)>& damage) {
        must_fail(
            plan, cat("op ", op, ", wait ", w, ", ", what), [&](plan::Plan& p) { damage(p.ops[op].record.wait[w]); },
            true);
      };
      change("none", [](abi::Wait& wait) { wait.limit = 0; });
      change("of fewer tiles", [](abi::Wait& wait) { --wait.target, --wait.last_target; });
      if (reads)  // no race where rank 0 alone has a part for this one
        must_fail(plan, cat("op ", op, ", wait ", w, " for rank 0 alone"),
                  [&](plan::Plan& p) { p.ops[op].record.wait[w].rank_stride = 0; });
    }
  }
}

void damage_parts(const plan::Plan& plan) {
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    if (!plan::is_part(plan.buffers[slot].kind)) continue;
    auto change = [&](const char* what, const std::function<void(plan::Buffer&)>& damage) {
      must_fail(plan, cat("slot ", slot, ", ", what), [&](plan::Plan& p) { damage(p.buffers[slot]); });
    };
    change("rank + 1", [](plan::Buffer& b) { ++b.index; });
    change("rank - 1", [](plan::Buffer& b) { --b.index; });
    change("smaller", [](plan::Buffer& b) { b.size_bytes -= 4; });
    change("no twin", [](plan::Buffer& b) { b.twin = -1; });
    change("its own twin", [&](plan::Buffer& b) { b.twin = static_cast<int>(slot); });
    change("of the other exchange", [](plan::Buffer& b) { b.arena_offset = 3 - b.arena_offset; });
    change("the other way",
           [](plan::Buffer& b) { b.kind = b.kind == BufferKind::kPart ? BufferKind::kPartOut : BufferKind::kPart; });
  }
}

}  // namespace

int main() {
  for (int world : {2, 3, 4}) {
    const plan::Plan plan = plan_of_parts(world);
    EXPECT_EQ(complaint(plan, planner::VerifyLevel::kFull), std::string());
    EXPECT_EQ(refusal(plan), std::string());
    EXPECT(plan::to_json(plan::from_json(plan::to_json(plan))) == plan::to_json(plan));
    // one set of parts for all launches is a race
    EXPECT(!refusal(plan, {.box_sets = 1}).empty());
    damage_waits(plan);
    damage_parts(plan);
  }
  std::printf("%d damages caught\n", caught);
  EXPECT(caught > 60);
  return test::result("verify_uneven");
}
