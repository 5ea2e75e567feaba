// One GPU: its primary context (the one that torch uses) and what ark has to know of it.
#pragma once
#include <string>

#include "cuda/driver.h"

namespace ark::cuda {

struct GpuInfo {
  Device device = 0;
  Context context = nullptr;
  std::string name, arch;  // arch: "sm_90a"
  int multiprocessors = 0, max_shared_bytes = 0;
};

/// Throws DeviceError when there is no such device, UnsupportedError when it is no sm_90 or lacks cooperative launches.
/// Retains the primary context for the life of the process.
GpuInfo open_gpu(int ordinal);
/// The primary context of any GPU, retained for the life of the process.
Context primary_context(int ordinal);

/// Device memory outside torch's allocator, for what outlives calls (records, lists, constants, states of captured
/// launches). May be allocated and filled while a stream is being captured.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(Context context, size_t size_bytes);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept;
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  DevicePtr address() const { return address_; }
  size_t size_bytes() const { return size_bytes_; }
  /// Copies and waits.
  void upload(size_t offset, const void* from, size_t size_bytes) const;
  /// Never freed: a captured graph may still use it.
  void leak() { address_ = 0; }

 private:
  Context context_ = nullptr;
  DevicePtr address_ = 0;
  size_t size_bytes_ = 0;
};

/// Copies into device memory that somebody else owns, and waits; may be called while a stream is being captured.
void upload_and_wait(Context context, DevicePtr to, const void* from, size_t size_bytes);

/// Waits for all work of the context; does nothing where the process is ending, and reports no error.
void wait_for_all(Context context) noexcept;

/// Pinned host memory that the device can write.
class PinnedMemory {
 public:
  PinnedMemory(Context context, size_t size_bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* host() const { return host_; }
  DevicePtr device() const { return device_; }
  void leak() { host_ = nullptr; }

 private:
  Context context_ = nullptr;
  void* host_ = nullptr;
  DevicePtr device_ = 0;
};

}  // namespace ark::cuda
