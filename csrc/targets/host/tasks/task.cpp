#include "targets/host/tasks/task.h"

#include <algorithm>

#include "base/check.h"
#include "base/unsupported.h"

namespace ark::targets::host {

BoundProgram bind_task_program(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels, int program,
                               int first_operand, std::span<const int64_t> size) {
  check(program >= 0 && program < static_cast<int>(plan.programs.size()), "op '", op.name, "': program ", program,
        " of ", plan.programs.size());
  const Program& source = plan.programs[program];
  const int count = static_cast<int>(op.operands.size());
  check(first_operand >= 0 && first_operand + source.num_operands <= count, "op '", op.name, "': operands ",
        first_operand, " to ", first_operand + source.num_operands, " of ", count);
  std::vector<int64_t> domain(size.begin(), size.end());
  while (static_cast<int>(domain.size()) > source.num_dims && domain.front() == 1) domain.erase(domain.begin());
  while (static_cast<int>(domain.size()) < source.num_dims) domain.insert(domain.begin(), 1);
  for (const abi::Operand& operand : op.operands)
    check(operand.slot == abi::kNoSlot || operand.slot < plan.buffers.size(), "op '", op.name, "': slot ", operand.slot,
          " of ", plan.buffers.size());
  try {
    return bind_program(source, kernels, domain, std::span(op.operands).subspan(first_operand, source.num_operands),
                        op.operands);
  } catch (const UnsupportedError& error) {
    throw NodeUnsupported(op.node, cat("op '", op.name, "': ", error.what()));
  }
}

std::unique_ptr<Task> make_task(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels) {
  switch (plan::kind_of(op.record).family) {
#define ARK_FAMILY(name, member, Params) \
  case plan::Family::name:               \
    return make_##member##_task(plan, op, kernels);
    ARK_FAMILIES(ARK_FAMILY)
#undef ARK_FAMILY
  }
  throw InternalError(cat("op '", op.name, "': task kind ", int(op.record.kind)));
}

}  // namespace ark::targets::host
