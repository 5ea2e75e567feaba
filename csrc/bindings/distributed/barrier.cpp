// Barriers of the host, which come after what the current stream holds, and of GPUs.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>

#include "base/check.h"
#include "bindings/distributed/cuda/work.h"
#include "bindings/distributed/process_group.h"

namespace ark::bindings {

/// Torch's dispatcher hands on the numbers of devices, not that they are GPUs. Without a number the barrier is the
/// host's: which GPU a group will use is not known before its first tensor.
std::optional<c10::Device> ProcessGroupArk::barrier_gpu(const c10d::BarrierOptions& opts) const {
  if (opts.device && opts.device->is_cuda()) return opts.device;
  if (!cuda_ || opts.device) return std::nullopt;
  if (!opts.device_ids.empty())
    return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(opts.device_ids[0]));
  return getBoundDeviceId();
}

/// What the current stream holds at the moment, null if nothing: a barrier of the host comes after it, as one of NCCL
/// would.
std::shared_ptr<c10::Event> ProcessGroupArk::queued_on_gpu() const {
  constexpr auto kCuda = c10::DeviceType::CUDA;
  if (!cuda_) return nullptr;
  const c10::impl::VirtualGuardImpl impl(kCuda);
  const c10::Device device = impl.getDevice();
  if (!at::detail::getCUDAHooks().hasPrimaryContext(device.index())) return nullptr;
  const c10::Stream stream = impl.getStream(device);
  if (is_capturing(stream)) return nullptr;
  auto event = std::make_shared<c10::Event>(kCuda);
  event->record(stream);
  return has_ended(*event) ? nullptr : event;
}

void ProcessGroupArk::wait_for(const std::shared_ptr<c10::Event>& event, const Call& call) {
  while (event && !has_ended(*event)) {
    cuda_->poll();
    channel_->check_failures({cat("barrier number ", call.sequence, " of group ", name_), {}});
    check<DeviceError>(!call.deadline.passed(), "barrier number ", call.sequence, " of group ", name_, " on rank ",
                       getRank(), ": what the stream held did not end within the time-out");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

ProcessGroupArk::WorkPtr ProcessGroupArk::barrier(const c10d::BarrierOptions& opts) {
  Attempt attempt(*this, "barrier");
  if (auto gpu = barrier_gpu(opts); gpu && gpu->is_cuda())
    return on_gpu(
        "barrier", [&](CudaGroup& g) { return g.barrier(opts, *gpu); },
        [&](c10d::Backend& b) { return b.barrier(opts); });
  return submit(c10d::OpType::BARRIER, {}, opts.timeout, [this, queued = queued_on_gpu()](const Call& call) {
    wait_for(queued, call);
    collectives_->barrier(call);
  });
}

}  // namespace ark::bindings
