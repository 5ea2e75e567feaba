#include "planner/rows_form.h"

#include <cstring>

#include "base/types.h"

namespace ark::plan {
namespace {

bool same(const RowsForm& a, const RowsForm& b) {
  return a.vector_operands == b.vector_operands && std::memcmp(&a.params, &b.params, sizeof a.params) == 0;
}

uint32_t vector_operands(const Op& op) {
  uint32_t mask = 0;
  for (size_t i = 0; i < op.operands.size() && i < 32; ++i) {
    const abi::Operand& o = op.operands[i];
    if (o.slot == abi::kNoSlot || o.index_operand >= 0) continue;
    if (o.vector * size_bytes(static_cast<DType>(o.dtype)) >= 16) mask |= 1u << i;
  }
  return mask;
}

}  // namespace

RowsForms rows_forms(const Plan& plan) {
  RowsForms result;
  for (const Op& op : plan.ops) {
    result.of_op.push_back(-1);
    if (op.record.kind != abi::TaskKind::kMatmulRows) continue;
    RowsForm form{op.record.params.rows, vector_operands(op)};
    form.params.form = 0;
    size_t at = 0;
    while (at < result.forms.size() && !same(result.forms[at], form)) ++at;
    if (at == result.forms.size()) result.forms.push_back(form);
    result.of_op.back() = static_cast<int>(at);
  }
  for (size_t i = 0; i < result.forms.size(); ++i) result.forms[i].params.form = static_cast<int>(i);
  return result;
}

}  // namespace ark::plan
