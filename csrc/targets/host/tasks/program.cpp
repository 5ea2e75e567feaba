// kPointwise, kRow, kColumn.
#include <algorithm>

#include "base/check.h"
#include "base/unsupported.h"
#include "targets/host/tasks/task.h"

namespace ark::targets::host {
namespace {

class ProgramTask : public Task {
 public:
  ProgramTask(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels)
      : kind_(op.record.kind), tile_(op.record.params.program.tile) {
    const abi::ProgramParams& params = op.record.params.program;
    const std::vector<int64_t> size(op.record.size, op.record.size + params.num_dims);
    program_ = bind_task_program(plan, op, kernels, params.program, params.first_operand, size);
    check(tile_ > 0, "op '", op.name, "': tile ", tile_);
    const int64_t row_total = kind_ == abi::TaskKind::kRow ? program_.outer_total : program_.inner_total;
    end_ = kind_ == abi::TaskKind::kPointwise ? program_.element.total : row_total;
    check_node(kind_ != abi::TaskKind::kColumn || params.split >= program_.outer_total, op.node, "op '", op.name,
               "': a column reduction split into parts of ", params.split, " of ", program_.outer_total);
    const ProgramKind expected = kind_ == abi::TaskKind::kPointwise ? ProgramKind::kPointwise
                                 : kind_ == abi::TaskKind::kRow     ? ProgramKind::kRow
                                                                    : ProgramKind::kColumn;
    check(program_.code.kind == expected, "op '", op.name, "': program of kind ", int(program_.code.kind),
          " in a task of kind ", int(kind_));
  }

  bool run(const TileEnvironment& env, int64_t first, int64_t count) const override {
    const int64_t begin = std::min(first * tile_, end_), end = std::min((first + count) * tile_, end_);
    if (begin >= end) return true;
    if (kind_ == abi::TaskKind::kPointwise) return run_elements(env, program_, begin, end);
    if (kind_ == abi::TaskKind::kRow) return run_rows(env, program_, begin, end, {});
    return run_columns(env, program_, begin, end);
  }

  double cost_ns() const override {
    double steps = 0;
    for (const Pass& pass : program_.code.passes) steps += static_cast<double>(pass.element.size());
    return steps * 0.5 * static_cast<double>(program_.element.total);
  }

 private:
  abi::TaskKind kind_;
  int64_t tile_ = 1, end_ = 0;
  BoundProgram program_;
};

}  // namespace

std::unique_ptr<Task> make_program_task(const plan::Plan& plan, const plan::Op& op, const Kernels& kernels) {
  return std::make_unique<ProgramTask>(plan, op, kernels);
}

}  // namespace ark::targets::host
