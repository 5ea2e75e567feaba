#include "targets/cuda/ranks.h"

#include <cstring>

#include "base/check.h"

namespace ark::targets {

void add_ranks(abi::LaunchHeader& header, const plan::Plan& plan, const RankMemory& memory) {
  header.rank = memory.rank;
  header.world = plan.world;
  header.deadline_ns = memory.deadline_ns;
  header.box_bytes = box_set_bytes(plan, memory.part_bytes);
  for (size_t r = 0; r < memory.segments.size(); ++r)
    header.peers[r] = reinterpret_cast<abi::RunState*>(rank_state(plan, memory.segments[r], memory.part_bytes));
}

void add_boxes(unsigned char* slots, const plan::Plan& plan, const RankMemory& memory) {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const plan::Buffer& buffer = plan.buffers[i];
    if (!plan::is_among_ranks(buffer.kind)) continue;
    void* address = box_address(plan, buffer, memory, 0);
    std::memcpy(slots + i * sizeof(abi::u64), &address, sizeof address);
  }
}

std::string describe_ranks(const plan::Plan& plan, const abi::ErrorRecord& e) {
  const std::string launch = cat("launch of '", plan.name, "' on rank ", e.rank);
  if (e.set == abi::kErrorRank)
    return cat(launch, ": rank ", e.fault.seen,
               " has given up, in this launch or an earlier one. Outputs are not valid");
  const abi::WaitName& wanted = e.fault.name;
  if (wanted.op < 0 || static_cast<size_t>(wanted.op) >= plan.ops.size()) return "";
  const plan::Op& op = plan.ops[static_cast<size_t>(wanted.op)];
  for (int w = 0; w < op.record.num_waits; ++w) {
    const abi::Wait& wait = op.record.wait[w];
    const int64_t after = int64_t{wanted.counter} - int64_t{wait.counter};
    if (wait.rank_stride == 0 || after < 0 || after >= int64_t{plan.world} * wait.rank_stride) continue;
    return cat(launch, ": rank ", after / wait.rank_stride, " has not sent in time what op ", wanted.op, " '", op.name,
               "', tile ", wanted.tile, ", worker ", e.worker, " waits for (counter ", wanted.counter, ": expected ",
               e.fault.expected, ", seen ", e.fault.seen, "). Outputs are not valid");
  }
  return "";
}

}  // namespace ark::targets
