// plan::pack: records one behind the other at multiples of 64 bytes, lists one behind the other with end marks.
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/unsupported.h"
#include "plan/params.h"
#include "plan/plan.h"

namespace ark::plan {
namespace {

static_assert(abi::kTypeBool == int(DType::kBool) && abi::kTypeU8 == int(DType::kU8) &&
              abi::kTypeI8 == int(DType::kI8) && abi::kTypeI16 == int(DType::kI16) &&
              abi::kTypeI32 == int(DType::kI32) && abi::kTypeI64 == int(DType::kI64) &&
              abi::kTypeF16 == int(DType::kF16) && abi::kTypeBF16 == int(DType::kBF16) &&
              abi::kTypeF32 == int(DType::kF32) && abi::kTypeF64 == int(DType::kF64));

constexpr size_t kRecordAlignment = 64;

/// Which op a message is about: written out when one is wanted (thousands of checks pass for one that fails).
struct Where {
  const Plan& plan;
  size_t op;
};
std::ostream& operator<<(std::ostream& out, const Where& at) {
  return out << "plan " << at.plan.name << ", op " << at.op << " (" << at.plan.ops[at.op].name << "): ";
}

/// Bits of the first `count`.
int dropped(uint32_t mask, int count) { return std::popcount(mask & ((1u << count) - 1)); }

void check_limits(const Plan& plan, size_t index) {
  const Op& op = plan.ops[index];
  const abi::OpRecord& r = op.record;
  const Where where{plan, index};
  size_t bytes = sizeof(abi::OpRecord) + op.operands.size() * sizeof(abi::Operand);
  check(bytes <= abi::kMaxRecordBytes, where, "expected at most ", abi::kMaxRecordBytes, " bytes of record, got ",
        bytes);
  check(0 <= r.num_waits && r.num_waits <= abi::kMaxWaits, where, r.num_waits, " waits");
  const size_t run_waits =
      static_cast<size_t>(r.num_waits - dropped(op.flags.dropped_waits, r.num_waits)) + op.flags.added_waits.size();
  check(run_waits <= abi::kMaxWaits, where, run_waits, " waits with those that were added");
  check(0 <= r.num_arrivals && r.num_arrivals <= abi::kMaxArrivals, where, r.num_arrivals, " arrivals");
  auto narrow = [](int64_t value) { return value == static_cast<int32_t>(value); };
  for (int64_t size : r.size)
    check_node(narrow(size), op.node, where, "expected dimensions below 2^31 elements, got ", size);
  for (const abi::Operand& operand : op.operands) {
    // entries without a slot hold numbers of a program or of an index, which the kernel reads as 64 bits
    for (int64_t stride : operand.stride)
      check_node(operand.slot == abi::kNoSlot || narrow(stride), op.node, where,
                 "expected strides below 2^31 elements, got ", stride);
    bool known = operand.slot == abi::kNoSlot || operand.slot < plan.buffers.size();
    check(known, where, "slot ", operand.slot, " of ", plan.buffers.size(), " buffers");
  }
  for (size_t i = 0; i < op.operands.size() && i < 32; ++i) {
    const bool flagged = (op.flags.operands >> i & 1) != 0;
    check(!flagged || (op.operands[i].slot != abi::kNoSlot && plan.buffers[op.operands[i].slot].first_word >= 0), where,
          "operand ", i, " is flagged, but has no flagged words");
  }
}

void check_item(const Plan& plan, const abi::WorkItem& item, size_t worker) {
  check(item.op >= 0 && static_cast<size_t>(item.op) < plan.ops.size(), "plan ", plan.name, ", worker ", worker,
        ": op ", item.op, " of ", plan.ops.size());
  const abi::OpRecord& r = plan.ops[static_cast<size_t>(item.op)].record;
  int64_t tiles = int64_t{r.grid[0]} * r.grid[1] * r.grid[2];
  bool inside = item.first >= 0 && item.count > 0 && int64_t{item.first} + item.count <= tiles;
  check(inside, "plan ", plan.name, ", worker ", worker, ": tiles ", item.first, " + ", item.count, " of op ", item.op,
        ", which has ", tiles);
}

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
    if (operand.slot < plan.buffers.size()) operand.slot = packed_slot(plan, operand.slot);
}

/// Few-row products name their programs in their form.
void use_numbers(const KernelNumbers& numbers, abi::OpRecord& record) {
  if (numbers.program.empty()) return;
  auto renumber = [&](abi::i32& program) {
    if (program >= 0) program = numbers.program[static_cast<size_t>(program)];
  };
  if (kind_of(record).reach == Reach::kPerForm) return;
  for_each_program(record, [&](abi::i32& program, abi::i32, ProgramKind) { renumber(program); });
}

}  // namespace

uint32_t packed_slot(const Plan& plan, uint32_t slot) {
  const BufferKind kind = plan.buffers[slot].kind;
  return kind == BufferKind::kBox || kind == BufferKind::kBoxOut ? slot | abi::kBoxSlot : slot;
}

Packed pack(const Plan& plan, const KernelNumbers& numbers) {
  check<UnsupportedError>(plan.world <= abi::kMostPlanRanks, "plan ", plan.name, ": exchanges between ", plan.world,
                          " ranks, expected at most ", abi::kMostPlanRanks);
  Packed packed;
  std::vector<int32_t> position(plan.ops.size());
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    check_limits(plan, i);
    const Op& op = plan.ops[i];
    size_t begin = packed.records.size(), operand_bytes = op.operands.size() * sizeof(abi::Operand);
    size_t bytes = sizeof(abi::OpRecord) + operand_bytes;
    position[i] = static_cast<int32_t>(begin / kRecordAlignment);
    abi::OpRecord record = op.record;
    record.op = static_cast<int32_t>(i);
    record.num_operands = static_cast<int32_t>(op.operands.size());
    record.record_bytes = static_cast<int32_t>(bytes);
    const int form = numbers.form.empty() ? op.form : numbers.form[i];
    if (form >= 0) record.params.rows.form = form;
    use_numbers(numbers, record);
    use_flags(op.flags, record);
    packed.records.resize(begin + (bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment);
    std::memcpy(&packed.records[begin], &record, sizeof(record));
    std::vector<abi::Operand> operands = op.operands;
    use_flags(plan, op.flags, operands);
    if (plan.world > 1) mark_boxes(plan, operands);
    if (operand_bytes > 0) std::memcpy(&packed.records[begin + sizeof(record)], operands.data(), operand_bytes);
  }
  for (size_t w = 0; w < plan.lists.size(); ++w) {
    packed.list_begin.push_back(static_cast<int32_t>(packed.items.size()));
    for (abi::WorkItem item : plan.lists[w]) {
      check_item(plan, item, w);
      item.record = position[static_cast<size_t>(item.op)];
      packed.items.push_back(item);
    }
    packed.items.push_back({abi::kEnd, 0, 0, -1});
  }
  return packed;
}

}  // namespace ark::plan
