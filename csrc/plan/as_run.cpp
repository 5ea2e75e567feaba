#include "plan/as_run.h"

#include <algorithm>
#include <span>

#include "base/check.h"
#include "plan/early_reads.h"
#include "plan/params.h"
#include "plan/pointwise_form.h"
#include "plan/record_limits.h"

namespace ark::plan {
namespace {

/// Flagged operands lie behind the counters.
void use_flags(const Plan& plan, const Flags& flags, std::vector<abi::Operand>& operands) {
  for (size_t i = 0; i < operands.size() && i < 32; ++i) {
    if ((flags.operands >> i & 1) == 0) continue;
    operands[i].offset += int64_t{plan.num_counters} * abi::kCounterStride + plan.buffers[operands[i].slot].first_word;
    operands[i].slot = abi::kFlagSlot;
    operands[i].vector = 1;
  }
}
void use_flags(const Flags& flags, abi::OpRecord& record) {
  int waits = 0, arrivals = 0;
  for (int i = 0; i < record.num_waits; ++i)
    if ((flags.dropped_waits >> i & 1) == 0) record.wait[waits++] = record.wait[i];
  for (const abi::Wait& wait : flags.added_waits) record.wait[waits++] = wait;
  for (int i = 0; i < record.num_arrivals; ++i) {
    if ((flags.dropped_arrivals >> i & 1) != 0) continue;
    record.arrive[arrivals] = record.arrive[i];
    record.arrive_rank_stride[arrivals++] = record.arrive_rank_stride[i];
  }
  record.num_waits = waits;
  record.num_arrivals = arrivals;
}

/// The kernel adds to the addresses of boxes what belongs to an odd launch.
void mark_boxes(const Plan& plan, std::vector<abi::Operand>& operands) {
  for (abi::Operand& operand : operands)
    if (operand.slot < plan.buffers.size()) operand.slot = run_slot(plan, operand.slot);
}

/// Of exchanges.
void mark_counters(const Plan& plan, abi::OpRecord& record) {
  for (abi::Wait& wait : std::span(record.wait, static_cast<size_t>(record.num_waits)))
    if (wait.rank_stride != 0) wait.counter = run_counter(plan, wait.counter);
  for (int i = 0; i < record.num_arrivals; ++i)
    if (record.arrive_rank_stride[i] != 0) record.arrive[i].counter = run_counter(plan, record.arrive[i].counter);
}

void renumber(const KernelNumbers& numbers, abi::i32& program) {
  if (program >= 0 && !numbers.program.empty()) program = numbers.program[static_cast<size_t>(program)];
}
void renumber(const KernelNumbers& numbers, abi::OpRecord& record) {
  for_each_program(record, [&](abi::i32& program, abi::i32, ProgramKind) { renumber(numbers, program); });
}

/// Few-row products name their programs in their form.
bool programs_are_the_forms(const abi::OpRecord& record) { return kind_of(record).reach == Reach::kPerForm; }

/// Of a program alone.
bool has_domain(const abi::OpRecord& record) {
  return record.kind == abi::TaskKind::kPointwise || record.kind == abi::TaskKind::kRow ||
         record.kind == abi::TaskKind::kColumn;
}
const Program& program_of(const Plan& plan, const Op& op) {
  const abi::i32 number = op.record.params.program.program;
  check(number >= 0 && static_cast<size_t>(number) < plan.programs.size(), "plan ", plan.name, ", op ", op.name,
        ": program ", number, " of ", plan.programs.size());
  return plan.programs[static_cast<size_t>(number)];
}

/// At the kernel's numbers.
std::vector<Program> run_programs(const Plan& plan, const KernelNumbers& numbers) {
  if (numbers.program.empty()) return plan.programs;
  std::vector<Program> programs;
  for (size_t i = 0; i < plan.programs.size(); ++i) {
    const int32_t number = numbers.program[i];
    if (number < 0) continue;  // no op names it
    programs.resize(std::max(programs.size(), static_cast<size_t>(number) + 1));
    programs[static_cast<size_t>(number)] = plan.programs[i];
  }
  return programs;
}

void set_run_op(Op& op, RunOp run, const KernelNumbers& numbers) {
  op.record = run.record;
  op.operands = std::move(run.operands);
  op.flags = {};
  op.early = 0;
  if (programs_are_the_forms(op.record)) {
    renumber(numbers, op.record);
    op.form = op.record.params.rows.form;
  }
  for (int32_t& program : op.programs) renumber(numbers, program);
}

}  // namespace

uint32_t run_slot(const Plan& plan, uint32_t slot) {
  const Buffer& buffer = plan.buffers[slot];
  if (!is_among_ranks(buffer.kind)) return slot;
  return slot | static_cast<uint32_t>(buffer.group) << abi::kBoxGroupShift | abi::kBoxSlot;
}

uint32_t run_counter(const Plan& plan, uint32_t counter) {
  const int32_t group = group_of_counter(plan, counter);
  return (counter - static_cast<uint32_t>(first_counter_of(plan, group))) | static_cast<uint32_t>(group)
                                                                                << abi::kCounterGroupShift;
}

uint32_t planned_counter(const Plan& plan, uint32_t run_counter) {
  const auto group = static_cast<int32_t>(run_counter >> abi::kCounterGroupShift);
  return (run_counter & abi::kCounterNumber) + static_cast<uint32_t>(first_counter_of(plan, group));
}

RunOp run_op(const Plan& plan, size_t index, const KernelNumbers& numbers) {
  check_limits(plan, index);
  const Op& op = plan.ops[index];
  RunOp run{op.record, op.operands};
  run.record.op = static_cast<int32_t>(index);
  run.record.num_operands = static_cast<int32_t>(run.operands.size());
  run.record.record_bytes = static_cast<int32_t>(sizeof(run.record) + run.operands.size() * sizeof(abi::Operand));
  set_early_params(op, run.record);
  const int form = numbers.form.empty() ? op.form : numbers.form[index];
  if (form >= 0) run.record.params.rows.form = form;
  if (!programs_are_the_forms(run.record)) renumber(numbers, run.record);
  use_flags(op.flags, run.record);
  use_flags(plan, op.flags, run.operands);
  if (plan.world > 1) mark_boxes(plan, run.operands);
  if (!plan.more_groups.empty()) mark_counters(plan, run.record);
  if (has_domain(run.record)) set_pointwise_form(program_of(plan, op), run);
  return run;
}

Plan as_run(const Plan& plan, const KernelNumbers& numbers) {
  Plan run = plan;
  for (size_t i = 0; i < plan.ops.size(); ++i) set_run_op(run.ops[i], run_op(plan, i, numbers), numbers);
  run.programs = run_programs(plan, numbers);
  for (TensorMap& map : run.maps) {
    check(map.slot < plan.buffers.size(), "plan ", plan.name, ": a tensor map of slot ", map.slot, " of ",
          plan.buffers.size());
    map.slot = run_slot(plan, map.slot);
  }
  return run;
}

}  // namespace ark::plan
