#include "plan/few_rows_form.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/types.h"
#include "plan/early_reads.h"

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

bool early_prologue(const Plan& plan, const Op& op) {
  const abi::MatmulRowsParams& p = op.record.params.rows;
  bool some = false;
  for (int i = p.prologue_operand; i < p.segment[0].first_operand; ++i) {
    check<UserError>(0 <= i && i < static_cast<int>(op.operands.size()), "op '", op.name, "': operand ", i,
                     " of its prologue, of ", op.operands.size());
    const abi::Operand& o = op.operands[static_cast<size_t>(i)];
    check<UserError>(o.slot == abi::kNoSlot || o.slot < plan.buffers.size(), "op '", op.name, "': slot ", o.slot,
                     " of ", plan.buffers.size());
    if (i < 32 && (op.flags.operands >> i & 1) != 0)
      some = true;
    else if (o.slot != abi::kNoSlot && !is_early(op, static_cast<size_t>(i)))
      return false;
  }
  return some;
}

bool is_few(const Op& op) { return op.record.kind == abi::TaskKind::kMatmulRows; }

/// Of a few-row product; everything but its number.
RowsForm form_of(const Plan& plan, const Op& op) {
  RowsForm form{op.record.params.rows, vector_operands(op), op.flags.operands, early_prologue(plan, op)};
  form.params.form = 0;
  form.params.weights_immutable = has_early_weights(op);
  std::fill(std::begin(form.params.map), std::end(form.params.map), 0);
  form.params.m = rows_of_form(form.params.m);
  return form;
}

}  // namespace

int rows_of_form(int m) { return m <= 1 ? m : m <= 8 ? 8 : abi::kMostFewRows; }

bool same_form(const RowsForm& a, const RowsForm& b) {
  return a.vector_operands == b.vector_operands && a.flagged_operands == b.flagged_operands &&
         a.early_prologue == b.early_prologue && std::memcmp(&a.params, &b.params, sizeof a.params) == 0;
}

void number_forms(Plan& plan) {
  std::vector<RowsForm> forms;
  for (Op& op : plan.ops) {
    op.form = -1;
    if (!is_few(op)) continue;
    const RowsForm form = form_of(plan, op);
    size_t at = 0;
    while (at < forms.size() && !same_form(forms[at], form)) ++at;
    if (at == forms.size()) forms.push_back(form);
    op.form = static_cast<int32_t>(at);
  }
}

std::vector<RowsForm> rows_forms(const Plan& plan) {
  std::vector<RowsForm> forms;
  for (const Op& op : plan.ops) {
    if (!is_few(op)) continue;
    check(0 <= op.form && op.form <= static_cast<int32_t>(forms.size()), "plan ", plan.name, ", op '", op.name,
          "': form ", op.form, " of few-row product, ", forms.size(), " before it");
    const auto at = static_cast<size_t>(op.form);
    RowsForm form = form_of(plan, op);
    form.params.form = op.form;
    form.once = at == forms.size();
    if (form.once) forms.push_back(form);
    check(same_form(forms[at], form), "plan ", plan.name, ", op '", op.name, "' is not of form ", op.form);
    forms[at].once &= form.once;
  }
  return forms;
}

}  // namespace ark::plan
