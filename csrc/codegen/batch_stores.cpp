#include "codegen/batch_stores.h"

#include <algorithm>
#include <vector>

#include "device/abi/roles.h"
#include "plan/operand_uses.h"

namespace ark::codegen {
namespace {

/// The batch whose coordinates alone the instruction stores; -1: it is no such store.
int64_t batch_of(const Program& program, const Instr& instr) {
  const bool plain = instr.op == Opcode::kStore && instr.b < 0 && instr.c < 0 && !instr.uniform;
  return plain ? plan::stored_batch(program, instr) : -1;
}

/// Whether the instruction may stand between stores that become one.
bool is_of_predicates(const Instr& instr) {
  return instr.op == Opcode::kConst || instr.op == Opcode::kIndex || instr.op == Opcode::kEq;
}

/// The stores of batches 0, 1, .. from instruction `begin` on.
std::vector<size_t> run_from(const Program& program, size_t begin, BatchStores& found) {
  std::vector<size_t> run;
  const Instr& first = program.instrs[begin];
  for (size_t i = begin; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (is_of_predicates(instr)) continue;
    const int batch = static_cast<int>(run.size());
    if (batch_of(program, instr) != batch || instr.a != first.a || instr.dtype != first.dtype) break;
    if (batch == 0) found.first = instr.operand;
    if (batch == 1) found.rest = instr.operand;
    if (instr.operand != found.operand(batch)) break;
    run.push_back(i);
  }
  found.count = static_cast<int>(run.size());
  return run;
}

/// Whether an instruction that is not of the run names one of its operands.
bool used_otherwise(const Program& program, const std::vector<size_t>& run, const BatchStores& stores) {
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    const Instr& instr = program.instrs[i];
    if (instr.operand < 0 || std::ranges::find(run, i) != run.end()) continue;
    const int end = instr.operand + (instr.op == Opcode::kLoadParts ? int{abi::PartsOperand::kCount} : 1);
    for (int batch = 0; batch < stores.count; ++batch)
      if (stores.operand(batch) >= instr.operand && stores.operand(batch) < end) return true;
  }
  return false;
}

}  // namespace

BatchStores join_batch_stores(Program& program) {
  for (size_t i = 0; i < program.instrs.size(); ++i) {
    if (batch_of(program, program.instrs[i]) != 0) continue;
    BatchStores stores;
    const std::vector<size_t> run = run_from(program, i, stores);
    if (run.size() < 2 || used_otherwise(program, run, stores)) continue;
    program.instrs[run.front()].d = -1;
    for (size_t k = 1; k < run.size(); ++k) program.instrs[run[k]] = Instr{.op = Opcode::kConst, .dtype = DType::kI64};
    return stores;
  }
  return {};
}

}  // namespace ark::codegen
