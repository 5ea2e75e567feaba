#include "cuda/device.h"

#include <cstring>
#include <utility>

#include "base/check.h"

namespace ark::cuda {
namespace {

int attribute(DeviceAttribute which, Device device) {
  int value = 0;
  check_result(driver().device_get_attribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

/// A stream that waits for nobody, so that an upload does not join a capture or the legacy stream.
class PrivateStream {
 public:
  PrivateStream() { check_result(driver().stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate"); }
  ~PrivateStream() { driver().stream_destroy(stream_); }
  PrivateStream(const PrivateStream&) = delete;
  PrivateStream& operator=(const PrivateStream&) = delete;
  Stream get() const { return stream_; }

 private:
  Stream stream_ = nullptr;
};

}  // namespace

GpuInfo open_gpu(int ordinal) {
  const Driver& api = driver();
  int count = 0;
  check_result(api.device_get_count(&count), "cuDeviceGetCount");
  check<DeviceError>(ordinal >= 0 && ordinal < count, "CUDA device ", ordinal, " does not exist; there are ", count);
  GpuInfo gpu;
  check_result(api.device_get(&gpu.device, ordinal), "cuDeviceGet");
  char name[128] = "";
  check_result(api.device_get_name(name, sizeof name, gpu.device), "cuDeviceGetName");
  gpu.name = name;
  int major = attribute(DeviceAttribute::kComputeCapabilityMajor, gpu.device);
  int minor = attribute(DeviceAttribute::kComputeCapabilityMinor, gpu.device);
  check<UnsupportedError>(major == 9 && minor == 0, gpu.name, " has compute capability ", major, ".", minor,
                          "; the kernels of ark are written for 9.0 (Hopper)");
  check<UnsupportedError>(attribute(DeviceAttribute::kCooperativeLaunch, gpu.device), gpu.name,
                          " does not launch kernels cooperatively");
  gpu.arch = "sm_90a";
  gpu.multiprocessors = attribute(DeviceAttribute::kMultiprocessorCount, gpu.device);
  gpu.max_shared_bytes = attribute(DeviceAttribute::kMaxSharedMemoryPerBlockOptin, gpu.device);
  gpu.context = primary_context(ordinal);
  return gpu;
}

Context primary_context(int ordinal) {
  Device device = 0;
  Context context = nullptr;
  check_result(driver().device_get(&device, ordinal), "cuDeviceGet");
  check_result(driver().primary_context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  return context;
}

DeviceMemory::DeviceMemory(Context context, size_t size_bytes) : context_(context), size_bytes_(size_bytes) {
  if (!size_bytes) return;
  ContextScope scope(context);
  RelaxedCaptureScope relaxed;
  check_result(driver().mem_alloc(&address_, size_bytes), cat("cuMemAlloc of ", size_bytes, " bytes").c_str());
}

DeviceMemory::~DeviceMemory() {
  if (!address_) return;
  // Without a context (the process is ending) there is nothing left to free.
  Context current = nullptr;
  const Driver& api = driver();
  CaptureMode mode = CaptureMode::kRelaxed;
  if (api.context_push(context_) != kSuccess) return;
  api.exchange_capture_mode(&mode);
  api.mem_free(address_);
  api.exchange_capture_mode(&mode);
  api.context_pop(&current);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : context_(other.context_), address_(std::exchange(other.address_, 0)), size_bytes_(other.size_bytes_) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(context_, other.context_);
  std::swap(address_, other.address_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

void DeviceMemory::upload(size_t offset, const void* from, size_t size_bytes) const {
  check(offset + size_bytes <= size_bytes_, "upload of ", size_bytes, " bytes to offset ", offset, " of ", size_bytes_);
  upload_and_wait(context_, address_ + offset, from, size_bytes);
}

void upload_and_wait(Context context, DevicePtr to, const void* from, size_t size_bytes) {
  if (!size_bytes) return;
  ContextScope scope(context);
  RelaxedCaptureScope relaxed;
  PrivateStream stream;
  check_result(driver().copy_to_device_async(to, from, size_bytes, stream.get()), "cuMemcpyHtoDAsync");
  check_result(driver().stream_synchronize(stream.get()), "cuStreamSynchronize after an upload");
}

void wait_for_all(Context context) noexcept {
  const Driver& api = driver();
  if (api.context_push(context) != kSuccess) return;  // the process is ending: the driver has taken all back
  Context popped = nullptr;
  CaptureMode mode = CaptureMode::kRelaxed;
  api.exchange_capture_mode(&mode);
  api.context_synchronize();
  api.exchange_capture_mode(&mode);
  api.context_pop(&popped);
}

PinnedMemory::PinnedMemory(Context context, size_t size_bytes) : context_(context) {
  ContextScope scope(context);
  RelaxedCaptureScope relaxed;
  check_result(driver().mem_host_alloc(&host_, size_bytes, kHostAllocPortable | kHostAllocMapped), "cuMemHostAlloc");
  std::memset(host_, 0, size_bytes);
  check_result(driver().mem_host_get_device_pointer(&device_, host_, 0), "cuMemHostGetDevicePointer");
}

PinnedMemory::~PinnedMemory() {
  Context current = nullptr;
  const Driver& api = driver();
  if (!host_ || api.context_push(context_) != kSuccess) return;
  api.mem_free_host(host_);
  api.context_pop(&current);
}

}  // namespace ark::cuda
