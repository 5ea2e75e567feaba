#include "cuda/driver.h"

#include <dlfcn.h>

#include "base/check.h"

namespace ark::cuda {
namespace {

struct Loaded {
  Driver api{};
  std::string problem;
};

template <class Entry>
void resolve(void* library, const char* symbol, Entry& entry, std::string& problem) {
  entry = reinterpret_cast<Entry>(dlsym(library, symbol));
  if (!entry && problem.empty()) problem = cat("libcuda.so.1 lacks ", symbol, "; the driver is older than CUDA 12.0");
}

Loaded load() {
  Loaded result;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    result.problem = cat("the CUDA driver cannot be opened: ", dlerror());
    return result;
  }
  Driver& api = result.api;
  auto get = [&](const char* symbol, auto& entry) { resolve(library, symbol, entry, result.problem); };
  get("cuGetErrorString", api.get_error_string);
  get("cuInit", api.init);
  get("cuDriverGetVersion", api.driver_get_version);
  get("cuDeviceGetCount", api.device_get_count);
  get("cuDeviceGet", api.device_get);
  get("cuDeviceGetName", api.device_get_name);
  get("cuDeviceGetAttribute", api.device_get_attribute);
  get("cuDevicePrimaryCtxRetain", api.primary_context_retain);
  get("cuCtxGetCurrent", api.context_get_current);
  get("cuCtxPushCurrent_v2", api.context_push);
  get("cuCtxPopCurrent_v2", api.context_pop);
  get("cuCtxSynchronize", api.context_synchronize);
  get("cuModuleLoadData", api.module_load_data);
  get("cuModuleUnload", api.module_unload);
  get("cuModuleGetFunction", api.module_get_function);
  get("cuFuncSetAttribute", api.function_set_attribute);
  get("cuOccupancyMaxActiveBlocksPerMultiprocessor", api.occupancy);
  get("cuLaunchKernelEx", api.launch_kernel);
  get("cuMemAlloc_v2", api.mem_alloc);
  get("cuMemFree_v2", api.mem_free);
  get("cuMemHostAlloc", api.mem_host_alloc);
  get("cuMemHostGetDevicePointer_v2", api.mem_host_get_device_pointer);
  get("cuMemFreeHost", api.mem_free_host);
  get("cuMemcpyHtoDAsync_v2", api.copy_to_device_async);
  get("cuMemsetD8Async", api.memset_d8_async);
  get("cuStreamCreate", api.stream_create);
  get("cuStreamSynchronize", api.stream_synchronize);
  get("cuStreamDestroy_v2", api.stream_destroy);
  get("cuStreamGetCaptureInfo_v2", api.stream_capture_info);
  get("cuThreadExchangeStreamCaptureMode", api.exchange_capture_mode);
  get("cuMemGetAllocationGranularity", api.mem_granularity);
  get("cuMemCreate", api.mem_create);
  get("cuMemRelease", api.mem_release);
  get("cuMemAddressReserve", api.mem_reserve);
  get("cuMemAddressFree", api.mem_unreserve);
  get("cuMemMap", api.mem_map);
  get("cuMemUnmap", api.mem_unmap);
  get("cuMemSetAccess", api.mem_set_access);
  get("cuMemExportToShareableHandle", api.mem_export);
  get("cuMemImportFromShareableHandle", api.mem_import);
  get("cuMemGetAddressRange_v2", api.mem_address_range);
  get("cuIpcGetMemHandle", api.ipc_get_handle);
  get("cuIpcOpenMemHandle_v2", api.ipc_open_handle);
  get("cuIpcCloseMemHandle", api.ipc_close_handle);
  get("cuMemcpyDtoHAsync_v2", api.copy_to_host_async);
  get("cuMemcpyDtoDAsync_v2", api.copy_on_device_async);
  get("cuStreamCreateWithPriority", api.stream_create_with_priority);
  get("cuTensorMapEncodeTiled", api.tensor_map_encode_tiled);
  if (!result.problem.empty()) return result;
  if (Result status = api.init(0); status != kSuccess) {
    const char* text = nullptr;
    api.get_error_string(status, &text);
    result.problem = cat("cuInit failed with ", status, ": ", text ? text : "unknown error");
  }
  return result;
}

const Loaded& loaded() {
  static const Loaded instance = load();
  return instance;
}

}  // namespace

const Driver& driver() {
  const Loaded& instance = loaded();
  check<DeviceError>(instance.problem.empty(), instance.problem);
  return instance.api;
}

std::string driver_problem() { return loaded().problem; }

void check_result(Result result, const char* what) {
  if (result == kSuccess) [[likely]]
    return;
  const char* text = nullptr;
  driver().get_error_string(result, &text);
  throw DeviceError(cat(what, " failed with CUDA error ", result, ": ", text ? text : "unknown error"));
}

ContextScope::ContextScope(Context context) {
  Context current = nullptr;
  check_result(driver().context_get_current(&current), "cuCtxGetCurrent");
  if (current == context) return;
  check_result(driver().context_push(context), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  Context popped = nullptr;
  if (pushed_) driver().context_pop(&popped);
}

RelaxedCaptureScope::RelaxedCaptureScope() {
  check_result(driver().exchange_capture_mode(&previous_), "cuThreadExchangeStreamCaptureMode");
}

RelaxedCaptureScope::~RelaxedCaptureScope() { driver().exchange_capture_mode(&previous_); }

}  // namespace ark::cuda
