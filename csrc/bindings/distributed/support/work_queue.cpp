#include "bindings/distributed/support/work_queue.h"

#include <ATen/ThreadLocalState.h>
#include <c10/core/InferenceMode.h>

#include "bindings/distributed/support/completions.h"
#include "bindings/distributed/support/profiling_title.h"

namespace ark::bindings {

ArkWork::ArkWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results)
    : c10d::Work(rank, type, profiling_title(type), results),
      results_(std::move(results)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))),
      sequence_(sequence) {
  // The first callback: complete() runs it, with this Work alive.
  future_->addCallback(
      [this](c10::ivalue::Future& future) { finish(future.hasError() ? future.exception_ptr() : nullptr); });
}

void ArkWork::start_clocks() const {
  for (const auto& [clock, limit] : clocks_) clock.start(comm::Clock::now() + limit);
}

c10::intrusive_ptr<c10::ivalue::Future> ArkWork::getFuture() {
  start_clocks();
  return take_future();
}

c10::intrusive_ptr<c10::ivalue::Future> ArkWork::take_future() {
  std::lock_guard lock(future_mutex_);
  future_taken_ = true;
  return future_;
}

void ArkWork::end_future(const std::exception_ptr& error) {
  if (error)
    future_->setError(error);
  else
    future_->markCompleted(c10::IValue(results_));
}

void ArkWork::complete(std::exception_ptr error) {
  {
    std::lock_guard lock(future_mutex_);
    if (!future_taken_) return end_future(error);
  }
  auto self = c10::intrusive_ptr<ArkWork>::reclaim_copy(this);
  Completions::own().add([self, error] { self->end_future(error); });
}

bool ArkWork::wait(std::chrono::milliseconds timeout) {
  start_clocks();
  if (timeout != kNoTimeout) {
    std::unique_lock lock(mutex_);
    TORCH_CHECK(cv_.wait_for(lock, timeout, [this] { return completed_; }), "ark process group, rank ", rank_, ": ",
                c10d::opTypeToString(opType_), " number ", sequence_, " did not end within ", timeout.count(), " ms");
  }
  return c10d::Work::wait(kNoTimeout);
}

void complete_with(const c10::intrusive_ptr<ArkWork>& work, const std::vector<c10::intrusive_ptr<c10d::Work>>& parts) {
  struct Countdown {
    std::mutex mutex;
    size_t left;
    std::exception_ptr error;
  };
  auto countdown = std::make_shared<Countdown>();
  countdown->left = parts.size();
  if (parts.empty()) return work->complete(nullptr);
  for (const auto& part : parts) {
    auto* own = dynamic_cast<ArkWork*>(part.get());
    if (own) work->clocks_.insert(work->clocks_.end(), own->clocks_.begin(), own->clocks_.end());
    (own ? own->take_future() : part->getFuture())->addCallback([countdown, work](c10::ivalue::Future& future) {
      {
        std::lock_guard lock(countdown->mutex);
        if (future.hasError() && !countdown->error) countdown->error = future.exception_ptr();
        if (--countdown->left > 0) return;
      }
      work->complete(countdown->error);
    });
  }
}

WorkQueue::WorkQueue() : thread_([this] { run(); }) {}

WorkQueue::~WorkQueue() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void WorkQueue::push(c10::intrusive_ptr<ArkWork> work, std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.emplace_back(std::move(work), std::move(job));
  }
  changed_.notify_one();
}

bool WorkQueue::drain(std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return idle_.wait_until(lock, deadline, [this] { return jobs_.empty() && !running_; });
}

void WorkQueue::cancel(std::exception_ptr error) {
  decltype(jobs_) cancelled;
  {
    std::lock_guard lock(mutex_);
    cancelled.swap(jobs_);
  }
  for (auto& [work, job] : cancelled) work->complete(error);
}

/// The first of the queue; its tensors are released before anyone is told, and nothing of it under the lock.
void WorkQueue::run_first(std::unique_lock<std::mutex>& lock) {
  auto [work, job] = std::move(jobs_.front());
  jobs_.pop_front();
  lock.unlock();
  std::exception_ptr error;
  try {
    job();
  } catch (...) {
    error = std::current_exception();
  }
  job = nullptr;
  work->complete(error);
  work.reset();
  lock.lock();
}

void WorkQueue::run() {
  c10::InferenceMode no_autograd(false);
  std::unique_lock lock(mutex_);
  while (true) {
    running_ = false;
    if (jobs_.empty()) idle_.notify_all();
    changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    running_ = true;
    run_first(lock);
  }
}

}  // namespace ark::bindings
