#include "comm/window.h"

#include <cstring>
#include <sstream>

#include "base/check.h"

namespace ark::comm {
namespace {

using namespace ark::cuda;

std::string key_of(const GroupInfo& group, int number, int rank) {
  return cat("ark/", group.name, "/window/", number, "/", rank);
}

std::string hexadecimal(const IpcHandle& handle) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (unsigned char byte : handle.bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

IpcHandle parse_handle(const std::string& text) {
  IpcHandle handle{};
  check<DeviceError>(text.size() == 2 * sizeof handle.bytes, "an interprocess handle of ", text.size(), " digits");
  for (size_t i = 0; i < sizeof handle.bytes; ++i)
    handle.bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return handle;
}

}  // namespace

Window::Window(Store& store, const GroupInfo& group, const GpuInfo& gpu, int number, size_t size_bytes,
               Clock::time_point deadline)
    : rank_(group.rank), number_(number), gpu_(gpu), size_bytes_(size_bytes), bases_(group.world, 0) {
  memory_ = std::make_unique<SymmetricMemory>(store, group, gpu, cat("window.", number), size_bytes);
  memory_->offer();
  for (int step = 0; step < group.world; ++step) {
    const int r = (group.rank + step) % group.world;
    bases_[r] = memory_->of(r, deadline);
  }
  memory_->settle(deadline);
}

Window::Window(Store& store, const GroupInfo& group, const GpuInfo& gpu, int number, DevicePtr own, size_t size_bytes,
               Clock::time_point deadline)
    : rank_(group.rank), number_(number), gpu_(gpu), size_bytes_(size_bytes), bases_(group.world, 0) {
  ContextScope scope(gpu.context);
  RelaxedCaptureScope relaxed;
  DevicePtr begin = 0;
  size_t all = 0;
  check_result(driver().mem_address_range(&begin, &all, own), "cuMemGetAddressRange of registered memory");
  check(own + size_bytes <= begin + all, "register: ", size_bytes, " bytes end behind the allocation of ", all);
  IpcHandle handle{};
  check_result(driver().ipc_get_handle(&handle, begin),
               "cuIpcGetMemHandle of registered memory (memory of cudaMalloc is needed: torch's expandable segments "
               "have none)");
  bases_[rank_] = own;
  store.set(key_of(group, number, rank_), cat(hexadecimal(handle), ' ', own - begin));
  open_peers(store, group, deadline);
}

void Window::open_peers(Store& store, const GroupInfo& group, Clock::time_point deadline) {
  for (int step = 1; step < group.world; ++step) {
    const int r = (group.rank + step) % group.world;
    std::istringstream place(store.get(key_of(group, number_, r), deadline, r));
    std::string handle;
    uint64_t offset = 0;
    place >> handle >> offset;
    DevicePtr mapped = 0;
    check_result(driver().ipc_open_handle(&mapped, parse_handle(handle), kIpcLazyPeerAccess),
                 cat("cuIpcOpenMemHandle of rank ", r, "'s memory").c_str());
    opened_.push_back(mapped);
    bases_[r] = mapped + offset;
  }
}

Window::~Window() {
  const Driver& api = driver();
  if (api.context_push(gpu_.context) != kSuccess) return;  // the process is ending: the driver has taken all back
  Context popped = nullptr;
  CaptureMode mode = CaptureMode::kRelaxed;
  api.exchange_capture_mode(&mode);
  api.context_synchronize();
  for (DevicePtr address : opened_) api.ipc_close_handle(address);
  memory_.reset();
  api.exchange_capture_mode(&mode);
  api.context_pop(&popped);
}

}  // namespace ark::comm
