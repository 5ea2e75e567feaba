// The verifier on what is read before the waits: bits that are set where an op of the launch writes before, and stores
// into a cache that may go below its position.
#include <functional>

#include "device/abi/roles.h"
#include "plan/early_reads.h"
#include "planner/verify/regions.h"
#include "support/check.h"
#include "support/model_graph.h"
#include "support/verify_plans.h"

using namespace ark;
using namespace ark::test;

namespace {

using X = abi::AttentionOperand;
using Change = std::function<void(plan::Plan&)>;

plan::Plan decoding() {
  auto [m, x] = decode_step();
  m.graph.outputs = {x};
  m.graph.name = "caches";
  return plan_of(m.graph, true, true);
}

void refuse(const plan::Plan& plan, const std::string& part, const Change& change) {
  plan::Plan damaged = plan;
  change(damaged);
  for (auto level : {planner::VerifyLevel::kStructure, planner::VerifyLevel::kFull}) {
    const std::string said = complaint(damaged, level);
    if (said.find(part) == std::string::npos)
      test::fail(cat(plan.name, ": expected \"", part, "\", got \"", said, '"'), __FILE__, __LINE__);
  }
}

/// An op before `index` writes the memory of the slot.
bool written_before(const plan::Plan& plan, size_t index, uint32_t slot) {
  for (size_t op = 0; op < index; ++op) {
    const std::vector<planner::OperandUse> uses = planner::read_uses(plan.ops[op], plan.programs);
    for (size_t i = 0; i < uses.size(); ++i)
      if (uses[i].write && plan.ops[op].operands[i].slot == slot) return true;
  }
  return false;
}

/// Each bit that the pass has not set, by itself: what an op before writes, what no input is, what is not read.
int set_each_bit(const plan::Plan& plan) {
  int before = 0;
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const std::vector<planner::OperandUse> uses = planner::read_uses(plan.ops[op], plan.programs);
    for (size_t i = 0; i < plan::kEarlyOperands; ++i) {
      if (plan::is_early(plan.ops[op], i)) continue;
      const bool read = i < uses.size() && uses[i].read && !uses[i].write;
      const uint32_t slot = read ? plan.ops[op].operands[i].slot : 0;
      const bool input = read && plan.buffers[slot].kind == plan::BufferKind::kInput;
      const bool written = input && written_before(plan, op, slot);
      const Change set = [&](plan::Plan& p) { p.ops[op].early |= 1u << i; };
      if (!read)
        refuse(plan, "is read before the waits, but not read", set);
      else if (!input)
        refuse(plan, "ahead of its waits, which is no input", set);
      else if (written)
        refuse(plan, "writes it before", set);
      before += written;
    }
  }
  return before;
}

void test_bits() {
  int before = 0;
  for (const plan::Plan& plan : sample_plans()) before += set_each_bit(plan);
  EXPECT(before > 0);  // caches that are stored to, then read
  set_each_bit(decoding());
}

/// An op that comes before, in the list of ops, writes what is read early.
void test_early_inputs_are_written() {
  std::vector<plan::Plan> plans = sample_plans();
  plans.push_back(decoding());
  for (const plan::Plan& plan : plans)
    for (size_t op = 1; op < plan.ops.size(); ++op)
      for (size_t i = 0; i < plan.ops[op].operands.size(); ++i) {
        if (!plan::is_early(plan.ops[op], i)) continue;
        refuse(plan, "writes it before", [&](plan::Plan& p) {
          const uint32_t slot = p.ops[op].operands[i].slot;
          p.buffers[slot].immutable = false;
          const std::vector<planner::OperandUse> uses = planner::read_uses(p.ops[0], p.programs);
          for (size_t x = 0; x < uses.size(); ++x)
            if (uses[x].write) p.ops[0].operands.at(x).slot = slot;
          // another op may read what op 0 wrote: an input, so nobody asks who wrote it
          for (plan::Buffer& b : p.buffers)
            if (b.kind == plan::BufferKind::kArena || b.kind == plan::BufferKind::kOutput)
              b.kind = plan::BufferKind::kInput, b.index = 0;
        });
      }
}

void test_fields() {
  const plan::Plan plan = decoding();
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    plan::Plan same = plan;
    plan::set_early_params(same.ops[op], same.ops[op].record);
    const bool says =
        complaint(same, planner::VerifyLevel::kStructure).find("expected bits alone") != std::string::npos;
    const abi::TaskKind kind = plan.ops[op].record.kind;
    EXPECT_EQ(says, kind == abi::TaskKind::kMatmulRows || kind == abi::TaskKind::kAttentionDecode);
  }
}

// ---- caches ----

/// Op, operand and store of who writes the keys (or values) of the first attention.
struct Store {
  size_t op = 0, operand = 0, program = 0, instr = 0;
  int first = 0;
};
Store store_into(const plan::Plan& plan, uint32_t slot) {
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const abi::OpRecord& r = plan.ops[op].record;
    if (r.kind != abi::TaskKind::kMatmulRows) continue;
    for (int s = 0; s < r.params.rows.num_segments; ++s) {
      const abi::Segment& g = r.params.rows.segment[s];
      const Program& program = plan.programs[static_cast<size_t>(g.program)];
      for (size_t i = 0; i < program.instrs.size(); ++i) {
        const auto operand = static_cast<size_t>(g.first_operand + program.instrs[i].operand);
        if (program.instrs[i].op == Opcode::kStore && plan.ops[op].operands[operand].slot == slot)
          return {op, operand, static_cast<size_t>(g.program), i, g.first_operand};
      }
    }
  }
  throw InternalError("nobody stores to the cache");
}

size_t first_decode(const plan::Plan& plan) {
  for (size_t op = 0; op < plan.ops.size(); ++op)
    if (plan.ops[op].record.kind == abi::TaskKind::kAttentionDecode) return op;
  throw InternalError("no decode attention");
}

void test_caches() {
  const plan::Plan plan = decoding();
  EXPECT_EQ(complaint(plan), "");
  const size_t decode = first_decode(plan);
  for (const size_t operand : {X::kK, X::kV}) {
    const Store store = store_into(plan, plan.ops[decode].operands[operand].slot);
    const abi::Operand& target = plan.ops[store.op].operands[store.operand];
    const auto numbers = static_cast<size_t>(target.index_operand);
    const Instr instr = plan.programs[store.program].instrs[store.instr];
    auto program = [&](plan::Plan& p) -> std::vector<Instr>& { return p.programs[store.program].instrs; };
    auto row = [&](plan::Plan& p) -> Instr& { return program(p)[static_cast<size_t>(instr.b)]; };
    auto damage = [&](const Change& change) { refuse(plan, "writes it before", change); };
    EXPECT(instr.b >= 0 && instr.c >= 0);
    // a row below: less than the scalar, another sum, another scalar, no scalar
    damage([&](plan::Plan& p) {
      for (int16_t arg : {row(p).a, row(p).b})
        if (program(p)[static_cast<size_t>(arg)].op == Opcode::kConst)
          program(p)[static_cast<size_t>(arg)].imm_int = -1;
    });
    damage([&](plan::Plan& p) { row(p).op = Opcode::kSub; });
    damage([&](plan::Plan& p) { row(p).a = row(p).b; });
    damage([&](plan::Plan& p) {
      for (abi::Operand& x : p.ops[store.op].operands)
        if (x.slot == p.ops[decode].operands[X::kPosition].slot) x.offset += 1;
    });
    damage([&](plan::Plan& p) { p.ops[decode].operands[X::kPosition].offset += 1; });
    // another row's place: by the index, by what stands beside it, by the first element
    damage([&](plan::Plan& p) { p.ops[store.op].operands[numbers].stride[0] /= 2; });
    damage([&](plan::Plan& p) { p.ops[store.op].operands[numbers].stride[1] *= 2; });
    damage([&](plan::Plan& p) { p.ops[store.op].operands[numbers].stride[2] *= 2; });
    damage([&](plan::Plan& p) { p.ops[store.op].operands[store.operand].offset += 1; });
    damage([&](plan::Plan& p) { std::swap(program(p)[store.instr].b, program(p)[store.instr].c); });
    damage([&](plan::Plan& p) { program(p)[store.instr].b = -1; });
  }
  refuse(plan, "expected 518 among them", [&](plan::Plan& p) { p.ops[decode].early &= ~(1u << X::kPosition); });
  refuse(plan, "expected 518 among them", [&](plan::Plan& p) { p.ops[decode].early &= ~(1u << X::kK); });
}

}  // namespace

int main() {
  test_bits();
  test_early_inputs_are_written();
  test_fields();
  test_caches();
  return test::result("verify_early");
}
