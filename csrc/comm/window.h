// Windows: memory of every rank of a group that all ranks have mapped, for tensors that collectives read and write in
// place instead of staging them. Either new memory, or what somebody else has allocated with cudaMalloc (torch's
// allocator does), found by CUDA's interprocess handles. Making one is a collective call.
#pragma once
#include <memory>
#include <vector>

#include "comm/symmetric_memory.h"

namespace ark::comm {

class Window {
 public:
  /// New memory of `size_bytes`, the same on all ranks. `number` is the same on all ranks, and nobody else's.
  Window(Store& store, const GroupInfo& group, const cuda::GpuInfo& gpu, int number, size_t size_bytes,
         Clock::time_point deadline);
  /// The caller's memory, which stays his; the ranks' sizes may differ.
  Window(Store& store, const GroupInfo& group, const cuda::GpuInfo& gpu, int number, cuda::DevicePtr own,
         size_t size_bytes, Clock::time_point deadline);
  /// Waits for the kernels of the device: the memory may be in use.
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  int number() const { return number_; }
  size_t size_bytes() const { return size_bytes_; }
  cuda::DevicePtr own() const { return bases_[rank_]; }
  /// Of rank r, as mapped here.
  cuda::DevicePtr base(int r) const { return bases_[r]; }
  bool contains(cuda::DevicePtr address, size_t bytes) const {
    return address >= own() && address - own() <= size_bytes_ && bytes <= size_bytes_ - (address - own());
  }

 private:
  void open_peers(Store& store, const GroupInfo& group, Clock::time_point deadline);
  int rank_, number_;
  cuda::GpuInfo gpu_;
  size_t size_bytes_;
  std::unique_ptr<SymmetricMemory> memory_;  // null: the caller's memory
  std::vector<cuda::DevicePtr> bases_;
  std::vector<cuda::DevicePtr> opened_;  // by interprocess handles
};

}  // namespace ark::comm
