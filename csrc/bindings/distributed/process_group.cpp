// The life of a group: how it is made, who may call it, how it ends.
#include "bindings/distributed/process_group.h"

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "base/check.h"
#include "base/log.h"
#include "bindings/distributed/support/c10d_store.h"
#include "bindings/distributed/support/completions.h"

namespace ark::bindings {

namespace {

constexpr std::chrono::seconds kGrace(5);  // for what is under way when a group is destroyed

uint64_t next_number() {
  static std::atomic<uint64_t> made{0};
  return made++;
}

}  // namespace

ProcessGroupArk::ProcessGroupArk(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                 std::chrono::milliseconds timeout, std::string name, GroupSetup setup)
    : c10d::Backend(rank, size),
      number_(next_number()),
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
                        .check = [this](int peer) { channel_->check_peer({cat("group ", name_), {}}, peer); },
                        .abort_plans = [this] { plans_.abort(getRank()); }});
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
  plans_.close();
  end_queues(deadline);
  if (cuda_) cuda_->shutdown(deadline);
  plans_.clear();
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
  Completions::own().drain(deadline);
}

}  // namespace ark::bindings
