// The part of the CUDA driver API that ark uses, opened at run time: building needs no CUDA toolkit, and one build
// serves machines with and without a GPU. Types and numbers are those of the driver's ABI.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace ark::cuda {

using Result = int;
using Device = int;
using Context = struct ContextHandle*;
using Module = struct ModuleHandle*;
using Function = struct FunctionHandle*;
using Stream = struct StreamHandle*;
using DevicePtr = unsigned long long;

inline constexpr Result kSuccess = 0;

enum class DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kCooperativeLaunch = 95,
  kMaxSharedMemoryPerBlockOptin = 97,
};
enum class FunctionAttribute : int { kMaxDynamicSharedSizeBytes = 8 };
enum class CaptureMode : int { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum class CaptureStatus : int { kNone = 0, kActive = 1, kInvalidated = 2 };

/// 128 bytes that only the driver understands.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};
enum class TensorMapType : int { kU8 = 0, kU16, kU32, kI32, kU64, kI64, kF16, kF32, kF64, kBF16 };
enum class TensorMapInterleave : int { kNone = 0 };
enum class TensorMapSwizzle : int { kNone = 0, k32B, k64B, k128B };
enum class TensorMapPromotion : int { kNone = 0, k64B, k128B, k256B };
enum class TensorMapFill : int { kZero = 0 };

enum class LaunchAttributeId : int { kCooperative = 2, kProgrammaticSerialization = 6 };
struct LaunchAttribute {
  LaunchAttributeId id;
  char pad[4];
  union {
    char bytes[64];
    int cooperative;
    int programmatic;
  } value;
};
static_assert(sizeof(LaunchAttribute) == 72);

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned num_attributes;
};
static_assert(sizeof(LaunchConfig) == 56);

inline constexpr unsigned kHostAllocPortable = 1, kHostAllocMapped = 2;
inline constexpr unsigned kStreamNonBlocking = 1;

// Memory that other processes can map.
using MemoryHandle = unsigned long long;
struct MemoryLocation {
  int type, id;  // kLocationDevice, ordinal
};
struct MemoryProperties {
  int type, handle_types;  // kMemoryPinned, kHandlePosixFd
  MemoryLocation location;
  void* windows_data;
  unsigned char compression, rdma;
  unsigned short usage;
  unsigned char reserved[4];
};
static_assert(sizeof(MemoryProperties) == 32);
struct MemoryAccess {
  MemoryLocation location;
  int flags;  // kAccessReadWrite
};
struct IpcHandle {
  char bytes[64];
};
inline constexpr int kLocationDevice = 1, kMemoryPinned = 1, kHandlePosixFd = 1, kAccessReadWrite = 3;
inline constexpr unsigned kIpcLazyPeerAccess = 1;

/// Entry points. Obtain with `driver()`.
struct Driver {
  Result (*get_error_string)(Result, const char**);
  Result (*init)(unsigned);
  Result (*driver_get_version)(int*);
  Result (*device_get_count)(int*);
  Result (*device_get)(Device*, int);
  Result (*device_get_name)(char*, int, Device);
  Result (*device_get_attribute)(int*, DeviceAttribute, Device);
  Result (*primary_context_retain)(Context*, Device);
  Result (*context_get_current)(Context*);
  Result (*context_push)(Context);
  Result (*context_pop)(Context*);
  Result (*context_synchronize)();
  Result (*module_load_data)(Module*, const void*);
  Result (*module_unload)(Module);
  Result (*module_get_function)(Function*, Module, const char*);
  Result (*function_set_attribute)(Function, FunctionAttribute, int);
  Result (*occupancy)(int*, Function, int block_size, size_t dynamic_shared_bytes);
  Result (*launch_kernel)(const LaunchConfig*, Function, void** params, void** extra);
  Result (*mem_alloc)(DevicePtr*, size_t);
  Result (*mem_free)(DevicePtr);
  Result (*mem_host_alloc)(void**, size_t, unsigned flags);
  Result (*mem_host_get_device_pointer)(DevicePtr*, void*, unsigned flags);
  Result (*mem_free_host)(void*);
  Result (*copy_to_device_async)(DevicePtr, const void*, size_t, Stream);
  Result (*memset_d8_async)(DevicePtr, unsigned char, size_t, Stream);
  Result (*stream_create)(Stream*, unsigned flags);
  Result (*stream_synchronize)(Stream);
  Result (*stream_destroy)(Stream);
  Result (*stream_capture_info)(Stream, CaptureStatus*, unsigned long long* id, void**, const void**, size_t*);
  Result (*exchange_capture_mode)(CaptureMode*);
  Result (*mem_granularity)(size_t*, const MemoryProperties*, int option);
  Result (*mem_create)(MemoryHandle*, size_t, const MemoryProperties*, unsigned long long flags);
  Result (*mem_release)(MemoryHandle);
  Result (*mem_reserve)(DevicePtr*, size_t size, size_t alignment, DevicePtr wish, unsigned long long flags);
  Result (*mem_unreserve)(DevicePtr, size_t);
  Result (*mem_map)(DevicePtr, size_t size, size_t offset, MemoryHandle, unsigned long long flags);
  Result (*mem_unmap)(DevicePtr, size_t);
  Result (*mem_set_access)(DevicePtr, size_t, const MemoryAccess*, size_t count);
  Result (*mem_export)(void* handle, MemoryHandle, int type, unsigned long long flags);
  Result (*mem_import)(MemoryHandle*, void* handle, int type);
  Result (*mem_address_range)(DevicePtr* base, size_t* size, DevicePtr);
  Result (*ipc_get_handle)(IpcHandle*, DevicePtr);
  Result (*ipc_open_handle)(DevicePtr*, IpcHandle, unsigned flags);
  Result (*ipc_close_handle)(DevicePtr);
  Result (*copy_to_host_async)(void*, DevicePtr, size_t, Stream);
  Result (*copy_on_device_async)(DevicePtr to, DevicePtr from, size_t, Stream);
  Result (*stream_create_with_priority)(Stream*, unsigned flags, int priority);
  Result (*tensor_map_encode_tiled)(TensorMap*, TensorMapType, unsigned rank, void* address, const uint64_t* sizes,
                                    const uint64_t* strides, const unsigned* box, const unsigned* element_strides,
                                    TensorMapInterleave, TensorMapSwizzle, TensorMapPromotion, TensorMapFill);
};

/// Opens libcuda once. Throws DeviceError with the reason when there is no usable driver.
const Driver& driver();
/// Empty when `driver()` works, else why it does not. Never throws.
std::string driver_problem();

/// Throws DeviceError with the driver's text; `what` names the call and its subject.
void check_result(Result result, const char* what);

/// Makes `context` current for the scope, if it is not already.
class ContextScope {
 public:
  explicit ContextScope(Context context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool pushed_ = false;
};

/// Lets this thread allocate and copy while another stream is being captured.
class RelaxedCaptureScope {
 public:
  RelaxedCaptureScope();
  ~RelaxedCaptureScope();
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;

 private:
  CaptureMode previous_ = CaptureMode::kRelaxed;
};

}  // namespace ark::cuda
