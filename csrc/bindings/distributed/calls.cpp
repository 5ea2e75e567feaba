// How a call of a group is numbered, queued and refused.
#include <exception>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "bindings/distributed/process_group.h"
#include "bindings/distributed/support/tensor_args.h"

namespace ark::bindings {

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

ProcessGroupArk::Attempt::Attempt(ProcessGroupArk& group, const char* operation)
    : group_(group), operation_(operation), exceptions_(std::uncaught_exceptions()), turn_(group.turn(operation)) {}

ProcessGroupArk::Attempt::~Attempt() {
  if (std::uncaught_exceptions() == exceptions_ || group_.closed_) return;
  const bool peers_wait = group_.channel_->note_refusal(cat(operation_, " (the exception of that rank says why)"));
  if (peers_wait && group_.cuda_) group_.abort_kernels();
  group_.drop_batch();
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
  std::optional<comm::Deadline> clock;
  if (type == c10d::OpType::SEND) work->set_clock(clock.emplace(comm::Deadline::none_yet()), timeout);
  queue.push(work, [this, sequence, timeout, before, clock, body = std::move(body)] {
    try {
      body(Call{sequence, clock.value_or(comm::Clock::now() + timeout), before});
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

}  // namespace ark::bindings
