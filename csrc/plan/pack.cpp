// plan::pack: records one behind the other at multiples of 64 bytes, lists one behind the other with end marks.
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "base/unsupported.h"
#include "plan/as_run.h"
#include "plan/plan.h"

namespace ark::plan {
namespace {

static_assert(offsetof(abi::Wait, limit) == offsetof(abi::Arrive, limit), "a wait begins with an arrival");
static_assert(abi::kTypeBool == int(DType::kBool) && abi::kTypeU8 == int(DType::kU8) &&
              abi::kTypeI8 == int(DType::kI8) && abi::kTypeI16 == int(DType::kI16) &&
              abi::kTypeI32 == int(DType::kI32) && abi::kTypeI64 == int(DType::kI64) &&
              abi::kTypeF16 == int(DType::kF16) && abi::kTypeBF16 == int(DType::kBF16) &&
              abi::kTypeF32 == int(DType::kF32) && abi::kTypeF64 == int(DType::kF64));

constexpr size_t kRecordAlignment = 64;

void check_groups(const Plan& plan) {
  check<UnsupportedError>(num_groups(plan) <= abi::kMostPlanGroups, "plan ", plan.name, ": exchanges of ",
                          num_groups(plan), " groups, expected at most ", abi::kMostPlanGroups);
  for (int32_t group = 0; group < num_groups(plan); ++group)
    check<UnsupportedError>(world_of(plan, group) <= abi::kMostPlanRanks, "plan ", plan.name, ": exchanges between ",
                            world_of(plan, group), " ranks, expected at most ", abi::kMostPlanRanks);
  check<UnsupportedError>(
      plan.more_groups.empty() || (plan.buffers.size() <= abi::kSlotNumber && plan.num_counters <= abi::kCounterNumber),
      "plan ", plan.name, " of several groups: ", plan.buffers.size(), " buffers and ", plan.num_counters, " counters");
}

void check_item(const Plan& plan, const abi::WorkItem& item, size_t worker) {
  check(item.op >= 0 && static_cast<size_t>(item.op) < plan.ops.size(), "plan ", plan.name, ", worker ", worker,
        ": op ", item.op, " of ", plan.ops.size());
  const abi::OpRecord& r = plan.ops[static_cast<size_t>(item.op)].record;
  const int64_t tiles = num_tiles(r);
  bool inside = item.first >= 0 && item.count > 0 && int64_t{item.first} + item.count <= tiles;
  check(inside, "plan ", plan.name, ", worker ", worker, ": tiles ", item.first, " + ", item.count, " of op ", item.op,
        ", which has ", tiles);
}

void append(const RunOp& op, std::vector<std::byte>& records) {
  const size_t begin = records.size(), bytes = static_cast<size_t>(op.record.record_bytes);
  records.resize(begin + (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment);
  std::memcpy(&records[begin], &op.record, sizeof(op.record));
  if (!op.operands.empty())
    std::memcpy(&records[begin + sizeof(op.record)], op.operands.data(), op.operands.size() * sizeof(abi::Operand));
}

/// A list for each worker: of the ops in the background, or of the others.
void append_lists(const Plan& plan, const std::vector<int32_t>& position, bool background, Packed& packed) {
  for (size_t w = 0; w < static_cast<size_t>(plan.num_workers); ++w) {
    packed.list_begin.push_back(static_cast<int32_t>(packed.items.size()));
    for (size_t i = 0; w < plan.lists.size() && i < plan.lists[w].size(); ++i) {
      abi::WorkItem item = plan.lists[w][i];
      check_item(plan, item, w);
      if ((plan.ops[static_cast<size_t>(item.op)].record.background != 0) != background) continue;
      item.record = position[static_cast<size_t>(item.op)];
      packed.items.push_back(item);
    }
    packed.items.push_back({abi::kEnd, 0, 0, -1});
  }
}

}  // namespace

Packed pack(const Plan& plan, const KernelNumbers& numbers) {
  check_groups(plan);
  check(plan.lists.size() <= static_cast<size_t>(plan.num_workers), "plan ", plan.name, ": ", plan.lists.size(),
        " lists for ", plan.num_workers, " workers");
  Packed packed;
  std::vector<int32_t> position;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    position.push_back(static_cast<int32_t>(packed.records.size() / kRecordAlignment));
    append(run_op(plan, i, numbers), packed.records);
  }
  append_lists(plan, position, false, packed);
  if (plan.world > 1) append_lists(plan, position, true, packed);
  return packed;
}

}  // namespace ark::plan
