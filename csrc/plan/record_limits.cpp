#include "plan/record_limits.h"

#include <bit>

#include "base/check.h"
#include "base/unsupported.h"

namespace ark::plan {
namespace {

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

}  // namespace

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

}  // namespace ark::plan
