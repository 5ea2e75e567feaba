// The forms of few-row products. Weights have fixed shapes, so the parameters of a few-row product are structure, not
// sizes: layers share them. Code is generated per form, with the parameters as constants (a third of the instructions
// between the pages of one op and the next went into reading and dividing them); a record names its form.
//
// The planner numbers the forms of a plan (number_forms, Op::form); codegen reads them (rows_forms).
//
// The rows of the activation are sizes where there may be several: a form is for one row, for up to 8 or (16 bits) for
// up to 16 of them, and the code of the latter two asks the record how many there are.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ark::plan {

struct RowsForm {
  abi::MatmulRowsParams params{};  // `form` is its place in the list, `m` 1, 8 or 16
  uint32_t vector_operands = 0;    // bit i: operand i of the record may be moved 16 bytes at once (first 32 operands)
  uint32_t flagged_operands = 0;   // bit i: operand i comes in flagged words (flag_words.h)
  bool early_prologue = false;     // the prologue reads flagged and early operands only: it needs no wait
  bool once = false;               // one op of the plan has it: no part of the form, but its code need not be fast
};

/// Rows of the activation that the code for m of them has room for.
int rows_of_form(int m);

/// Sets Op::form of every few-row product. After flag_words: which operands are flagged is a part of a form.
void number_forms(Plan& plan);
/// The forms that the plan's ops name, each as its first op has it. InternalError where an op of the form differs, or a
/// few-row product has none.
std::vector<RowsForm> rows_forms(const Plan& plan);
bool same_form(const RowsForm& a, const RowsForm& b);

}  // namespace ark::plan
