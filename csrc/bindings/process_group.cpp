#include "bindings/process_group.h"

#include <ATen/Functions.h>

#include "base/check.h"
#include "base/log.h"
#include "bindings/c10d_store.h"
#include "bindings/tensor_args.h"

namespace ark::bindings {

ProcessGroupArk::ProcessGroupArk(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                 std::chrono::milliseconds timeout, std::string name,
                                 c10::intrusive_ptr<c10d::Backend> cuda_backend, uint64_t first_step,
                                 std::unique_ptr<CudaGroup> cuda)
    : c10d::Backend(rank, size),
      name_(std::move(name)),
      timeout_(timeout),
      cuda_backend_(std::move(cuda_backend)),
      cuda_(std::move(cuda)) {
  C10dStore meeting(std::move(store));
  comm::ChannelOptions options;
  options.first_step = first_step;
  channel_ = std::make_unique<comm::StepChannel>(meeting, comm::GroupInfo{rank, size, name_}, options,
                                                 comm::Clock::now() + timeout);
  collectives_ = std::make_unique<comm::HostCollectives>(*channel_);
  if (!cuda_) return;
  cuda_->set_host_side({.number =
                            [this] {
                              channel_->note_call(true);
                              return sequence_++;
                            },
                        .check = [this] { channel_->check_failures({cat("group ", name_), {}}); }});
}

ProcessGroupArk::~ProcessGroupArk() { shutdown(); }

void ProcessGroupArk::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  if (cuda_) cuda_->set_timeout(timeout);
}

void ProcessGroupArk::abort() {
  channel_->fail("the group was aborted");
  if (cuda_) cuda_->abort();
}

void ProcessGroupArk::shutdown() {
  collective_queue_.reset();
  any_queue_.reset();
  send_queues_.clear();
  receive_queues_.clear();
}

WorkQueue& ProcessGroupArk::queue(std::unique_ptr<WorkQueue>& slot) {
  if (!slot) slot = std::make_unique<WorkQueue>();
  return *slot;
}

bool ProcessGroupArk::on_cuda(const Tensors& tensors, const char* operation) const {
  if (tensors.empty()) return false;
  check_device(tensors, tensors[0], operation);
  if (tensors[0].is_cuda()) return true;
  TORCH_CHECK(tensors[0].is_cpu(), "ark process group, ", operation, ": expected a CPU or CUDA tensor, got ",
              tensors[0].device());
  return false;
}

c10d::Backend& ProcessGroupArk::delegate(const char* operation) {
  TORCH_CHECK(cuda_backend_, "ark process group, ", operation,
              ": CUDA tensors need NCCL, which this torch does not have");
  if (coalescing_ && !coalescing_cuda_) {
    cuda_backend_->startCoalescing();
    coalescing_cuda_ = true;
  }
  std::lock_guard lock(mutex_);
  if (++delegated_[operation] == 1) log::info("process group ", name_, ": ", operation, " goes to NCCL");
  return *cuda_backend_;
}

std::map<std::string, int64_t> ProcessGroupArk::delegated() const {
  std::lock_guard lock(mutex_);
  return delegated_;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::enqueue(WorkQueue& queue, c10d::OpType type, uint64_t sequence,
                                                  Tensors results, std::chrono::milliseconds timeout, Body body,
                                                  std::optional<comm::CallCounts> before) {
  if (timeout == c10d::kUnsetTimeout || timeout.count() <= 0) timeout = timeout_;
  auto work = c10::make_intrusive<ArkWork>(getRank(), type, sequence, std::move(results));
  queue.push(work, [this, sequence, timeout, before, body = std::move(body)] {
    try {
      body(Call{sequence, comm::Clock::now() + timeout, before});
    } catch (const std::exception& error) {
      channel_->fail(error.what());  // the peers raise too
      if (before) abort_kernels();
      throw;
    }
  });
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::submit(c10d::OpType type, Tensors results, std::chrono::milliseconds timeout,
                                                 Body body) {
  return enqueue(queue(collective_queue_), type, sequence_++, std::move(results), timeout, std::move(body),
                 channel_->note_call(false));
}

/// What this rank and its peers have on their GPUs waits for nobody any more.
void ProcessGroupArk::abort_kernels() {
  try {
    if (cuda_) cuda_->abort();
  } catch (const std::exception& error) {
    log::warn("process group ", name_, ": its kernels end at their time-out: ", error.what());
  }
}

void ProcessGroupArk::startCoalescing() {
  coalescing_ = true;
  coalescing_cuda_ = coalescing_own_ = false;
  coalesced_.clear();
}

ProcessGroupArk::WorkPtr ProcessGroupArk::endCoalescing() {
  coalescing_ = false;
  if (coalescing_cuda_ && !coalescing_own_) {
    coalescing_cuda_ = false;
    return cuda_backend_->endCoalescing();
  }
  if (coalescing_own_) {
    auto parts = std::exchange(coalesced_, {});
    if (std::exchange(coalescing_cuda_, false)) parts.push_back(cuda_backend_->endCoalescing());
    coalescing_own_ = false;
    return c10::make_intrusive<CombinedWork>(getRank(), sequence_, std::move(parts));
  }
  // Collectives run in order: a last empty job ends after them. Point-to-point work has queues of its own and is waited
  // for.
  auto parts = std::exchange(coalesced_, {});
  Tensors results;
  for (const WorkPtr& part : parts)
    for (const at::Tensor& t : part->result()) results.push_back(t);
  auto work = c10::make_intrusive<ArkWork>(getRank(), c10d::OpType::COALESCED, sequence_, std::move(results));
  queue(any_queue_).push(work, [parts] {
    for (const WorkPtr& part : parts) part->wait();
  });
  return work;
}

/// Torch's dispatcher hands on the numbers of devices, not that they are GPUs. Without a number the barrier is the
/// host's: which GPU a group will use is not known before its first tensor.
std::optional<c10::Device> ProcessGroupArk::barrier_gpu(const c10d::BarrierOptions& opts) const {
  if (opts.device && opts.device->is_cuda()) return opts.device;
  if (!cuda_ || opts.device) return std::nullopt;
  if (!opts.device_ids.empty())
    return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(opts.device_ids[0]));
  return getBoundDeviceId();
}

ProcessGroupArk::WorkPtr ProcessGroupArk::barrier(const c10d::BarrierOptions& opts) {
  if (auto gpu = barrier_gpu(opts); gpu && gpu->is_cuda())
    return on_gpu(
        "barrier", [&](CudaGroup& g) { return g.barrier(opts, *gpu); },
        [&](c10d::Backend& b) { return b.barrier(opts); });
  return submit(c10d::OpType::BARRIER, {}, opts.timeout, [this](const Call& call) { collectives_->barrier(call); });
}

}  // namespace ark::bindings
