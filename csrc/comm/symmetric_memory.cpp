#include "comm/symmetric_memory.h"

#include "base/check.h"

namespace ark::comm {

SymmetricMemory::SymmetricMemory(Store& store, const GroupInfo& group, const cuda::GpuInfo& gpu, const std::string& tag,
                                 size_t size_bytes)
    : store_(store), group_(group), gpu_(gpu), tag_(tag), segments_(group.world) {
  segments_[group.rank] = CudaSegment(gpu, size_bytes);
  size_bytes_ = segments_[group.rank].size_bytes();
}

void SymmetricMemory::offer() {
  if (!server_) server_ = std::make_unique<FdServer>(store_, group_, tag_, segments_[group_.rank].export_fd());
}

cuda::DevicePtr SymmetricMemory::of(int rank, Clock::time_point deadline) {
  check(rank >= 0 && rank < group_.world, "symmetric memory of rank ", rank, " in a group of ", group_.world);
  CudaSegment& segment = segments_[rank];
  if (!segment.address()) segment = CudaSegment(gpu_, request_fd(store_, group_, tag_, rank, deadline), size_bytes_);
  return segment.address();
}

}  // namespace ark::comm
