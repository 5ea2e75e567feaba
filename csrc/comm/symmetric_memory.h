// The same amount of device memory on every rank of a group, mapped by all of them.
//
// A rank makes its segment and offers it; peers map it when they need it. So making one waits for nobody, and a pair of
// ranks can talk before the others have come. Ranks that are threads of one process on one GPU share the address: the
// same memory under two addresses of a device is not coherent within a kernel.
#pragma once
#include <memory>
#include <vector>

#include "comm/cuda_segment.h"

namespace ark::comm {

class SymmetricMemory {
 public:
  /// `tag` is unique within the group. The memory is zeroed.
  SymmetricMemory(Store& store, const GroupInfo& group, const cuda::GpuInfo& gpu, const std::string& tag,
                  size_t size_bytes);
  /// This rank will have no such memory: peers that ask for it get UnsupportedError.
  static void refuse(Store& store, const GroupInfo& group, const std::string& tag, const std::string& why);
  /// Makes the memory visible to the peers; what was written before is there.
  void offer();

  /// Waits until all ranks have mapped all segments; nobody is let in afterwards. Collective.
  void settle(Clock::time_point deadline);

  size_t size_bytes() const { return size_bytes_; }
  cuda::DevicePtr own() const { return segments_[group_.rank].address(); }
  /// Maps on the first call: waits for the rank to offer its segment, until `deadline`.
  cuda::DevicePtr of(int rank, Clock::time_point deadline);
  /// Zero while not mapped.
  cuda::DevicePtr mapped(int rank) const { return addresses_[rank]; }

 private:
  Store& store_;
  GroupInfo group_;
  cuda::GpuInfo gpu_;
  std::string tag_;
  size_t size_bytes_;
  std::vector<CudaSegment> segments_;
  std::vector<cuda::DevicePtr> addresses_;  // of own and mapped segments
  std::unique_ptr<FdServer> server_;
};

}  // namespace ark::comm
