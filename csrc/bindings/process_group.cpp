#include "bindings/process_group.h"

#include <ATen/Functions.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/check.h"
#include "base/log.h"
#include "bindings/c10d_store.h"
#include "bindings/tensor_args.h"

namespace ark::bindings {

namespace {

constexpr std::chrono::seconds kGrace(5);  // for what is under way when a group is destroyed

}  // namespace

ProcessGroupArk::ProcessGroupArk(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                 std::chrono::milliseconds timeout, std::string name, GroupSetup setup)
    : c10d::Backend(rank, size),
      name_(std::move(name)),
      timeout_(timeout),
      setup_(std::move(setup)),
      process_(::getpid()) {
  C10dStore meeting(store);
  comm::ChannelOptions options;
  options.first_step = setup_.first_step;
  const auto deadline = comm::Clock::now() + timeout;
  channel_ = std::make_unique<comm::StepChannel>(meeting, comm::GroupInfo{rank, size, name_}, options, deadline);
  collectives_ = std::make_unique<comm::HostCollectives>(*channel_);
  // What earlier groups of this name have left in the store is not this group's.
  store_ = c10::make_intrusive<c10d::PrefixStore>(cat("ark-", channel_->nonce(deadline)), store);
  if (!setup_.cuda) return;
  cuda_ = std::make_unique<CudaGroup>(store_, rank, size, name_, timeout, setup_);
  cuda_->set_host_side({.number = [this] { return number_gpu_call(); },
                        .check = [this] { channel_->check_failures({cat("group ", name_), {}}); }});
}

ProcessGroupArk::~ProcessGroupArk() {
  std::optional<pybind11::gil_scoped_release> others_run;  // futures of what ends now may call Python
  if (Py_IsInitialized() && PyGILState_Check()) others_run.emplace();
  shutdown();
}

/// A process forked from the group's has none of its threads, and what there is to undo is not its own.
void ProcessGroupArk::leave_to_parent() {
  inbox_.release();
  collective_queue_.release();
  for (auto& [rank, queue] : send_queues_) queue.release();
  cuda_.release();
  nccl_.release();
  gloo_.release();
  collectives_.release();
  channel_.release();
}

void ProcessGroupArk::check_open(const char* operation) const {
  TORCH_CHECK(!closed_, "ark process group ", name_, ", ", operation, ": the group has been destroyed");
  TORCH_CHECK(process_ == ::getpid(), "ark process group ", name_, ", ", operation, ": the group is that of process ",
              process_, ", which process ", ::getpid(), " was forked from: expected a group of its own");
}

std::unique_lock<std::recursive_mutex> ProcessGroupArk::turn(const char* operation) {
  check_open(operation);
  std::unique_lock lock(calls_, std::try_to_lock);
  if (!lock) {
    std::optional<pybind11::gil_scoped_release> others_run;
    if (PyGILState_Check()) others_run.emplace();
    lock.lock();
  }
  return lock;
}

void ProcessGroupArk::setTimeout(std::chrono::milliseconds timeout) {
  timeout_ = timeout;
  if (cuda_) cuda_->set_timeout(timeout);
}

void ProcessGroupArk::abort() {
  if (closed_ || process_ != ::getpid()) return;
  channel_->fail("the group was aborted");
  if (cuda_) cuda_->abort();
  for (auto& backend : {nccl_, gloo_})
    if (backend) backend->abort();
}

void ProcessGroupArk::shutdown() {
  if (closed_.exchange(true)) return;
  if (process_ != ::getpid()) return leave_to_parent();
  const auto deadline = comm::Clock::now() + std::min<std::chrono::milliseconds>(kGrace, timeout_);
  inbox_.reset();
  end_queues(deadline);
  if (cuda_) cuda_->shutdown(deadline);
  for (auto* backend : {&nccl_, &gloo_}) {
    try {
      if (*backend) (*backend)->shutdown();
    } catch (const std::exception& error) {
      log::warn("process group ", name_, ": ", (*backend)->getBackendName(), " does not shut down: ", error.what());
    }
    backend->reset();
  }
  channel_->leave();
  collectives_.reset();
  channel_.reset();
}

/// What has not ended by the deadline ends with an exception.
void ProcessGroupArk::end_queues(comm::Clock::time_point deadline) {
  std::vector<WorkQueue*> queues;
  if (collective_queue_) queues.push_back(collective_queue_.get());
  for (auto& [rank, queue] : send_queues_) queues.push_back(queue.get());
  bool ended = true;
  for (WorkQueue* queue : queues) ended = queue->drain(deadline) && ended;
  if (!ended) {
    auto error = std::make_exception_ptr(
        comm::CancelledError(cat("group ", name_, " on rank ", getRank(), ": the group was destroyed")));
    for (WorkQueue* queue : queues) queue->cancel(error);
    channel_->cancel();
    if (gloo_) gloo_->abort();
  }
  collective_queue_.reset();
  send_queues_.clear();
}

WorkQueue& ProcessGroupArk::queue(std::unique_ptr<WorkQueue>& slot) {
  if (!slot) slot = std::make_unique<WorkQueue>();
  return *slot;
}

bool ProcessGroupArk::on_cuda(const Tensors& tensors, const char* operation) const {
  check_open(operation);
  if (tensors.empty()) return false;
  check_device(tensors, tensors[0], operation);
  if (tensors[0].is_cuda()) return true;
  TORCH_CHECK(tensors[0].is_cpu(), "ark process group, ", operation, ": expected a CPU or CUDA tensor, got ",
              tensors[0].device());
  return false;
}

void ProcessGroupArk::count_delegated(const char* operation, const char* to) {
  own_delegated_.add(operation);
  const bool first = !setup_.delegated || setup_.delegated->add(operation);
  if (first) log::warn("process group ", name_, ": ", operation, " goes to ", to, " (logged once)");
}

c10d::Backend& ProcessGroupArk::delegate(const char* operation) {
  if (!nccl_ && setup_.make_nccl)
    nccl_ = setup_.make_nccl(c10::make_intrusive<c10d::PrefixStore>("nccl", store_), getRank(), getSize(), timeout_);
  TORCH_CHECK(nccl_, "ark process group, ", operation, ": CUDA tensors need NCCL, which this torch does not have",
              cuda_ ? cuda_->unusable() : std::string());
  if (coalescing_ && !coalescing_cuda_) {
    nccl_->startCoalescing();
    coalescing_cuda_ = true;
  }
  count_delegated(operation, "NCCL");
  return *nccl_;
}

/// On the thread of the collectives: all ranks meet to make it.
c10d::Backend& ProcessGroupArk::gloo() {
  if (!gloo_)
    gloo_ = setup_.make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store_), getRank(), getSize(), timeout_);
  return *gloo_;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::on_gloo(const char* operation, c10d::OpType type, const Tensors& tensors,
                                                  std::chrono::milliseconds timeout,
                                                  std::function<WorkPtr(c10d::Backend&)> call) {
  TORCH_CHECK(setup_.make_gloo, "ark process group, ", operation,
              ": this needs Gloo, which this torch does not have (expected dense tensors, got ", tensors[0].layout(),
              ")");
  count_delegated(operation, "Gloo");
  return submit(type, tensors, timeout, [this, call = std::move(call)](const Call&) { call(gloo())->wait(); });
}

ProcessGroupArk::Attempt::Attempt(ProcessGroupArk& group, const char* operation)
    : group_(group), operation_(operation), exceptions_(std::uncaught_exceptions()), turn_(group.turn(operation)) {}

ProcessGroupArk::Attempt::~Attempt() {
  if (std::uncaught_exceptions() == exceptions_ || group_.closed_) return;
  const bool peers_wait = group_.channel_->note_refusal(cat(operation_, " (the exception of that rank says why)"));
  if (peers_wait && group_.cuda_) group_.abort_kernels();
}

/// An exception on this rank alone after its call got a number: the peers wait for it in theirs.
void ProcessGroupArk::sequence_failed(const std::exception& error) {
  channel_->fail(error.what());
  abort_kernels();
}

uint64_t ProcessGroupArk::number_gpu_call() {
  auto what = [this] { return cat(gpu_call_.operation, " number ", sequence_, " of group ", name_); };
  if (int rank = channel_->left_by(); rank >= 0)
    throw DeviceError(cat(what(), " on rank ", getRank(), ": rank ", rank, " has destroyed the group"));
  if (int rank = channel_->refused_by(channel_->calls()); rank >= 0)
    throw UserError(cat(what(), " on rank ", getRank(), ": rank ", rank,
                        " refused its call of the same number: ", channel_->refusal(rank)));
  channel_->note_call(true);
  gpu_call_.numbered = true;
  return sequence_++;
}

ProcessGroupArk::WorkPtr ProcessGroupArk::enqueue(WorkQueue& queue, c10d::OpType type, uint64_t sequence,
                                                  Tensors results, std::chrono::milliseconds timeout, Body body,
                                                  std::optional<comm::CallCounts> before) {
  if (timeout == c10d::kUnsetTimeout || timeout.count() <= 0) timeout = timeout_;
  auto work = c10::make_intrusive<ArkWork>(getRank(), type, sequence, std::move(results));
  queue.push(work, [this, sequence, timeout, before, body = std::move(body)] {
    try {
      body(Call{sequence, comm::Clock::now() + timeout, before});
    } catch (const comm::CancelledError&) {
      throw;
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
  auto own_turn = turn("startCoalescing");
  coalescing_ = true;
  coalescing_cuda_ = coalescing_own_ = false;
  coalesced_.clear();
}

ProcessGroupArk::WorkPtr ProcessGroupArk::endCoalescing() {
  auto own_turn = turn("endCoalescing");
  coalescing_ = false;
  if (coalescing_cuda_ && !coalescing_own_) {
    coalescing_cuda_ = false;
    return nccl_->endCoalescing();
  }
  if (coalescing_own_) {
    auto parts = std::exchange(coalesced_, {});
    if (std::exchange(coalescing_cuda_, false)) parts.push_back(nccl_->endCoalescing());
    coalescing_own_ = false;
    return c10::make_intrusive<CombinedWork>(getRank(), sequence_, std::move(parts));
  }
  auto parts = std::exchange(coalesced_, {});
  Tensors results;
  for (const WorkPtr& part : parts)
    for (const at::Tensor& t : part->result()) results.push_back(t);
  auto work = c10::make_intrusive<ArkWork>(getRank(), c10d::OpType::COALESCED, sequence_, std::move(results));
  complete_with(work, parts);
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

/// What the current stream holds at the moment, null if nothing: a barrier of the host comes after it, as one of NCCL
/// would.
std::shared_ptr<c10::Event> ProcessGroupArk::queued_on_gpu() const {
  constexpr auto kCuda = c10::DeviceType::CUDA;
  if (!cuda_) return nullptr;
  const c10::impl::VirtualGuardImpl impl(kCuda);
  const c10::Device device = impl.getDevice();
  if (!at::detail::getCUDAHooks().hasPrimaryContext(device.index())) return nullptr;
  const c10::Stream stream = impl.getStream(device);
  if (is_capturing(raw_stream(stream))) return nullptr;
  auto event = std::make_shared<c10::Event>(kCuda);
  event->record(stream);
  return event->query() ? nullptr : event;
}

void ProcessGroupArk::wait_for(const std::shared_ptr<c10::Event>& event, const Call& call) {
  while (event && !event->query()) {
    cuda_->poll();
    channel_->check_failures({cat("barrier number ", call.sequence, " of group ", name_), {}});
    check<DeviceError>(comm::Clock::now() < call.deadline, "barrier number ", call.sequence, " of group ", name_,
                       " on rank ", getRank(), ": what the stream held did not end within the time-out");
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

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupArk::getBackendOptions() {
  return c10::make_intrusive<Options>(timeout_.load());
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupArk::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                         const std::vector<int>& ranks,
                                                         const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  check_open("split");
  for (int rank : ranks) check_root(rank, getSize(), "split");
  if (splits_.store == store.get() && !splits_.lives.expired())
    return c10::intrusive_ptr<ProcessGroupArk>::reclaim_copy(splits_.group);
  std::string name = opts->group_name.empty() ? cat(name_, ".split") : opts->group_name;
  if (const int times = splits_.times[name]++) name += cat('#', times);
  const auto own = std::find(ranks.begin(), ranks.end(), getRank());
  if (own == ranks.end()) return nullptr;
  auto group = c10::make_intrusive<ProcessGroupArk>(store, static_cast<int>(own - ranks.begin()),
                                                    static_cast<int>(ranks.size()), opts->timeout, name, setup_);
  splits_.store = store.get();
  splits_.group = group.get();
  splits_.lives = group->life_;
  return group;
}

}  // namespace ark::bindings
