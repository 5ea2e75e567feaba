#include "plan/few_rows_form.h"

#include <cstring>

#include "base/types.h"

namespace ark::plan {
namespace {

uint32_t vector_operands(const Op& op) {
  uint32_t mask = 0;
  for (size_t i = 0; i < op.operands.size() && i < 32; ++i) {
    const abi::Operand& o = op.operands[i];
    if (o.slot == abi::kNoSlot || o.index_operand >= 0) continue;
    if (o.vector * size_bytes(static_cast<DType>(o.dtype)) >= 16) mask |= 1u << i;
  }
  return mask;
}

bool early_prologue(const Plan& plan, const Op& op, uint32_t flagged) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  bool some = false;
  for (int i = p.prologue_operand; i < p.segment[0].first_operand; ++i) {
    const abi::Operand& o = op.operands[static_cast<size_t>(i)];
    if ((flagged >> i & 1) != 0)
      some = true;
    else if (o.slot != abi::kNoSlot && !plan.buffers[o.slot].immutable)
      return false;
  }
  return some;
}

}  // namespace

int rows_of_form(int m) { return m <= 1 ? m : m <= 8 ? 8 : abi::kMostFewRows; }

bool same_form(const RowsForm& a, const RowsForm& b) {
  return a.vector_operands == b.vector_operands && a.flagged_operands == b.flagged_operands &&
         a.early_prologue == b.early_prologue && std::memcmp(&a.params, &b.params, sizeof a.params) == 0;
}

RowsForms rows_forms(const Plan& plan, const planner::FlagWords& flags) {
  RowsForms result;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    result.of_op.push_back(-1);
    if (op.record.kind != abi::TaskKind::kMatmulRows) continue;
    RowsForm form{op.record.params.rows, vector_operands(op)};
    form.params.form = 0;
    form.params.m = rows_of_form(form.params.m);
    if (!flags.ops.empty()) form.flagged_operands = flags.ops[i].operands;
    form.early_prologue = early_prologue(plan, op, form.flagged_operands);
    size_t at = 0;
    while (at < result.forms.size() && !same_form(result.forms[at], form)) ++at;
    form.once = at == result.forms.size();
    if (form.once) result.forms.push_back(form);
    result.forms[at].once &= form.once;
    result.of_op.back() = static_cast<int>(at);
  }
  for (size_t i = 0; i < result.forms.size(); ++i) result.forms[i].params.form = static_cast<int>(i);
  return result;
}

}  // namespace ark::plan
