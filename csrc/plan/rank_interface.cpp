#include "plan/rank_interface.h"

#include "base/check.h"

namespace ark::plan {
namespace {

template <class List>
std::string joined(const List& list, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += cat(i > 0 ? "x" : "", list[i]);
  return text;
}

bool is_out(const Plan& plan, const abi::Operand& operand) {
  return operand.slot < plan.buffers.size() && plan.buffers[operand.slot].kind == BufferKind::kBoxOut;
}

/// The box, and how the tiles of the op go through it.
std::string describe_box(const Plan& plan, const abi::Operand& operand) {
  const Buffer& box = plan.buffers[operand.slot];
  const Buffer& twin = plan.buffers[static_cast<size_t>(box.twin)];
  return cat(" to rank ", box.index, ": ", name(static_cast<DType>(operand.dtype)), ", ", box.size_bytes,
             " bytes at ", twin.arena_offset, ", from ", operand.offset, ", strides ",
             joined(operand.stride, abi::kMaxDims));
}

std::string describe_arrivals(const abi::OpRecord& record) {
  std::string text;
  for (int a = 0; a < record.num_arrivals; ++a) {
    const abi::Arrive& arrive = record.arrive[a];
    if (record.arrive_rank_stride[a] == 0) continue;
    text += cat("; counters from ", arrive.counter, " by rank ", record.arrive_rank_stride[a], ": row ", arrive.base,
                " + ", joined(arrive.coef, 3), ", ", arrive.extent, " rows, ", arrive.div, " a counter, of ",
                arrive.limit);
  }
  return text;
}

}  // namespace

std::vector<RankTerm> rank_interface(const Plan& plan) {
  std::vector<RankTerm> terms;
  terms.push_back({"the plan", cat(plan.world, " ranks, ", plan.num_counters, " counters, boxes of ", plan.box_bytes,
                                   " bytes")});
  for (const Op& op : plan.ops) {
    std::string boxes;
    for (const abi::Operand& operand : op.operands)
      if (is_out(plan, operand)) boxes += describe_box(plan, operand) + ";";
    if (boxes.empty()) continue;
    const abi::OpRecord& record = op.record;
    terms.push_back({op.name, cat(name(record.kind), " of ", joined(record.size, abi::kMaxDims), ", tiles ",
                                  joined(record.grid, 3), boxes, describe_arrivals(record))});
  }
  return terms;
}

}  // namespace ark::plan
