// Device memory that other processes of the host can map: made here and exported as a file descriptor, or imported from
// a peer's. Never a multicast object. The memory lives until the last process that maps it lets go of it, also by
// dying.
#pragma once
#include <cstddef>

#include "comm/fd_exchange.h"
#include "cuda/device.h"

namespace ark::comm {

class CudaSegment {
 public:
  CudaSegment() = default;
  /// New memory on `gpu` of at least `size_bytes`, zeroed.
  CudaSegment(const cuda::GpuInfo& gpu, size_t size_bytes);
  /// A peer's memory, mapped for `gpu`. `size_bytes` is what the peer's size_bytes() says.
  CudaSegment(const cuda::GpuInfo& gpu, const UniqueFd& fd, size_t size_bytes);
  ~CudaSegment();
  CudaSegment(CudaSegment&& other) noexcept;
  CudaSegment& operator=(CudaSegment&& other) noexcept;

  cuda::DevicePtr address() const { return address_; }
  size_t size_bytes() const { return size_bytes_; }
  /// Rounded up to what the device allocates.
  static size_t rounded(const cuda::GpuInfo& gpu, size_t size_bytes);
  UniqueFd export_fd() const;

 private:
  void map(const cuda::GpuInfo& gpu);
  cuda::Context context_ = nullptr;
  cuda::MemoryHandle handle_ = 0;
  cuda::DevicePtr address_ = 0;
  size_t size_bytes_ = 0;
  bool mapped_ = false;
};

/// Sets device memory and waits; may be called while a stream is being captured.
void fill_and_wait(const cuda::GpuInfo& gpu, cuda::DevicePtr address, unsigned char value, size_t size_bytes);

}  // namespace ark::comm
