// How the rows of a program are walked (row_form.h), chosen once for all ops of a plan that use the program: from the
// lengths of their rows and from how their operands lie in memory.
#pragma once
#include <vector>

#include "codegen/row_form.h"
#include "ir/program.h"
#include "plan/plan.h"

namespace ark::codegen {

/// `ops`: at least one, all of kind kRow and of this program.
RowForm row_form(const Program& program, const std::vector<const plan::Op*>& ops);

/// Whether code of this form works on the rows of another op of its program, and no slower than code of more threads.
bool row_form_serves(const RowForm& form, const plan::Op& op);

}  // namespace ark::codegen
