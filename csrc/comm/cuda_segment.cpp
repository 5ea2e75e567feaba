#include "comm/cuda_segment.h"

#include <utility>

#include "base/check.h"

namespace ark::comm {
namespace {

using namespace ark::cuda;

MemoryProperties properties(const GpuInfo& gpu) {
  MemoryProperties p{};
  p.type = kMemoryPinned;
  p.handle_types = kHandlePosixFd;
  p.location = {kLocationDevice, gpu.device};
  return p;
}

}  // namespace

size_t CudaSegment::rounded(const GpuInfo& gpu, size_t size_bytes) {
  MemoryProperties p = properties(gpu);
  size_t granularity = 0;
  check_result(driver().mem_granularity(&granularity, &p, 0), "cuMemGetAllocationGranularity");
  return (size_bytes + granularity - 1) / granularity * granularity;
}

CudaSegment::CudaSegment(const GpuInfo& gpu, size_t size_bytes)
    : context_(gpu.context), size_bytes_(rounded(gpu, size_bytes)) {
  ContextScope scope(context_);
  RelaxedCaptureScope relaxed;
  MemoryProperties p = properties(gpu);
  check_result(driver().mem_create(&handle_, size_bytes_, &p, 0),
               cat("cuMemCreate of ", size_bytes_, " bytes").c_str());
  map(gpu);
  fill_and_wait(gpu, address_, 0, size_bytes_);
}

CudaSegment::CudaSegment(const GpuInfo& gpu, const UniqueFd& fd, size_t size_bytes)
    : context_(gpu.context), size_bytes_(size_bytes) {
  ContextScope scope(context_);
  RelaxedCaptureScope relaxed;
  void* os_handle = reinterpret_cast<void*>(static_cast<intptr_t>(fd.get()));
  check_result(driver().mem_import(&handle_, os_handle, kHandlePosixFd), "cuMemImportFromShareableHandle");
  map(gpu);
}

void CudaSegment::map(const GpuInfo& gpu) {
  MemoryAccess access{{kLocationDevice, gpu.device}, kAccessReadWrite};
  try {
    check_result(driver().mem_reserve(&address_, size_bytes_, 0, 0, 0), "cuMemAddressReserve");
    check_result(driver().mem_map(address_, size_bytes_, 0, handle_, 0), "cuMemMap");
    mapped_ = true;
    check_result(driver().mem_set_access(address_, size_bytes_, &access, 1),
                 "cuMemSetAccess (no peer access between the GPUs?)");
  } catch (...) {
    *this = CudaSegment();
    throw;
  }
}

CudaSegment::~CudaSegment() {
  if (!handle_) return;
  const Driver& api = driver();
  Context popped = nullptr;
  // Without a context (the process is ending) the driver has taken everything back.
  if (api.context_push(context_) != kSuccess) return;
  CaptureMode mode = CaptureMode::kRelaxed;
  api.exchange_capture_mode(&mode);
  if (mapped_) api.mem_unmap(address_, size_bytes_);
  if (address_) api.mem_unreserve(address_, size_bytes_);
  api.mem_release(handle_);
  api.exchange_capture_mode(&mode);
  api.context_pop(&popped);
}

CudaSegment::CudaSegment(CudaSegment&& other) noexcept { *this = std::move(other); }

CudaSegment& CudaSegment::operator=(CudaSegment&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(handle_, other.handle_);
  std::swap(address_, other.address_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

UniqueFd CudaSegment::export_fd() const {
  ContextScope scope(context_);
  int fd = -1;
  check_result(driver().mem_export(&fd, handle_, kHandlePosixFd, 0), "cuMemExportToShareableHandle");
  return UniqueFd(fd);
}

void fill_and_wait(const GpuInfo& gpu, DevicePtr address, unsigned char value, size_t size_bytes) {
  ContextScope scope(gpu.context);
  RelaxedCaptureScope relaxed;
  Stream stream = nullptr;
  check_result(driver().stream_create(&stream, kStreamNonBlocking), "cuStreamCreate");
  Result filled = driver().memset_d8_async(address, value, size_bytes, stream);
  if (filled == kSuccess) filled = driver().stream_synchronize(stream);
  driver().stream_destroy(stream);
  check_result(filled, "cuMemsetD8Async of a segment");
}

}  // namespace ark::comm
